"""A launch of what the attending kernel rotates queries and keys by, to see what it makes. Imported where Triton is."""

from __future__ import annotations

import triton
import triton.language as tl

from overdrive.device.cuda.attention_tile_kernels import load_rotated


@triton.jit
def rotated_kernel(out, x, x_stride, positions, cos, sin, COUNT: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr):
    """out [T, HEADS, D] = x [T, HEADS, D], rotated by positions [T], over the grid (T,). COUNT: HEADS or more."""
    token, head = tl.program_id(0), tl.arange(0, COUNT)
    at, valid = tl.load(positions + token) + tl.zeros_like(head), head < HEADS
    heads = load_rotated(x, token.to(tl.int64) * x_stride + head * D, at, valid, cos, sin, D)
    places = (token * HEADS + head)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + places, heads, mask=valid[:, None])
