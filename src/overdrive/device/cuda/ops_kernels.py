"""Triton kernels of a decoder's element-wise operations. Imported only where Triton is.

Each computes in float32 and rounds to the tensors' type where torch does, so `TorchOps` is their reference. Elements of
a row lie next to each other; strides are those of rows, and of heads, in elements. Widths are compile-time constants:
only then is it known that a row's end falls on a vector's, and a model has few widths. EARLY: set up while the kernel
before still runs (programmatic dependent launch), and wait for its end to begin.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_INDICES = ["ids", "positions"]  # slices begin anywhere: one binary serves them all


@triton.jit
def _await_previous(EARLY: tl.constexpr):
    """With EARLY: nothing that changes is touched before the kernel before has ended; the one after may be set up."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def copy_rows(x, out, x_stride, out_stride, EARLY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[t] = x[t]. Grid: (T, parts of a row)."""
    _await_previous(EARLY)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(x + token * x_stride + columns, mask=inside)
    tl.store(out + token * out_stride + columns, values, mask=inside)


@triton.jit(do_not_specialize_on_alignment=_INDICES)
def gather_rows(
    ids, table, out, table_stride, out_stride, EARLY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out[t] = table[ids[t]]. Grid: (T, parts of a row)."""
    _await_previous(EARLY)
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + token).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(table + row * table_stride + columns, mask=inside)
    tl.store(out + token * out_stride + columns, values, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def norm_rows(
    x, weight, out, rows, x_stride, x_head_stride, out_stride, eps, EARLY: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Norm of each head of each token; heads of `out` lie next to each other. Grid: tiles of BLOCK_ROWS heads."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token, head = row // HEADS, row % HEADS
    columns = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
    gain = tl.load(weight + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    _await_previous(EARLY)
    source = (token * x_stride + head * x_head_stride)[:, None] + columns[None, :]
    values = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / WIDTH + eps)
    normed = values * scale[:, None] * gain[None, :]
    target = (token * out_stride + head * WIDTH)[:, None] + columns[None, :]
    tl.store(out + target, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_norm_rows(
    residual, x, weight, out, residual_stride, x_stride, eps,
    EARLY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """residual[t] += x[t], rounded; out[t] = norm of that sum, contiguous. Grid: (T,)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    _await_previous(EARLY)
    place = residual + token * residual_stride + columns
    before = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    added = tl.load(x + token * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    total = (before + added).to(residual.dtype.element_ty)
    tl.store(place, total, mask=inside)
    values = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / WIDTH + eps)
    normed = values * scale * gain
    tl.store(out + token * WIDTH + columns, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_heads(
    x, head_stride, first_head, cos, sin,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_HEADS heads of one token in place; cos, sin: [BLOCK_HALF] float32."""
    head = first_head + tl.arange(0, BLOCK_HEADS)
    pair = tl.arange(0, BLOCK_HALF)
    inside = (head < HEADS)[:, None] & (pair < HALF)[None, :]
    low = x + head[:, None] * head_stride + pair[None, :]
    kind = x.dtype.element_ty
    first = tl.load(low, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(low + HALF, mask=inside, other=0.0).to(tl.float32)
    c, s = cos[None, :], sin[None, :]
    # torch rounds each product before it adds them.
    turned = (first * c).to(kind).to(tl.float32) - (second * s).to(kind).to(tl.float32)
    other = (second * c).to(kind).to(tl.float32) + (first * s).to(kind).to(tl.float32)
    tl.store(low, turned.to(kind), mask=inside)
    tl.store(low + HALF, other.to(kind), mask=inside)


@triton.jit(do_not_specialize_on_alignment=_INDICES)
def rotate(
    q, k, positions, cos, sin, q_stride, q_head_stride, k_stride, k_head_stride,
    EARLY: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Rotate both in place by row positions[t] of the tables [.., HALF]. Grid: (T, parts of q, then parts of k)."""
    _await_previous(EARLY)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    pair = tl.arange(0, BLOCK_HALF)
    angle = tl.load(positions + token).to(tl.int64) * HALF + pair
    c = tl.load(cos + angle, mask=pair < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=pair < HALF, other=0.0).to(tl.float32)
    q_parts: tl.constexpr = (Q_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    if part < q_parts:
        x = q + token * q_stride
        _rotate_heads(x, q_head_stride, part * BLOCK_HEADS, c, s, Q_HEADS, HALF, BLOCK_HEADS, BLOCK_HALF)
    else:
        x = k + token * k_stride
        _rotate_heads(x, k_head_stride, (part - q_parts) * BLOCK_HEADS, c, s, K_HEADS, HALF, BLOCK_HEADS, BLOCK_HALF)


@triton.jit
def gated(gate, up):
    """silu(gate) * up in the type of both; torch rounds silu before it multiplies."""
    wide = gate.to(tl.float32)
    open_ = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    return (open_ * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def gate_rows(gate_up, out, stride, EARLY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[t] = silu(gate_up[t, :WIDTH]) * gate_up[t, WIDTH:], contiguous. Grid: (T, parts of a row)."""
    _await_previous(EARLY)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    source = gate_up + token * stride + columns
    gate = tl.load(source, mask=inside, other=0.0)
    up = tl.load(source + WIDTH, mask=inside, other=0.0)
    tl.store(out + token * WIDTH + columns, gated(gate, up), mask=inside)
