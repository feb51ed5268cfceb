"""Triton kernels that put keys and values into their pages, as they come or with rotary position embedding on the way.

Imported only where Triton is: on a CUDA device, or under its interpreter. `store.py` has the torch forms.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Of both kernels: EARLY lets them be set up while the kernel before still runs (programmatic dependent launch).
_INDICES = ["positions", "writes", "offsets"]  # slices begin anywhere: one binary serves them all


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=_INDICES)
def store_kernel(
    k, v, k_stride, v_stride, k_pages, v_pages, writes, offsets, rows,
    EARLY: tl.constexpr, KV_HEADS: tl.constexpr, HEADS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Token t of grid (T,): k, v [T, KV_HEADS, D] to place `writes[t]`. HEADS: KV_HEADS up to a power of two."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    t = tl.program_id(0)
    if t >= tl.load(offsets + rows):
        return
    write = tl.load(writes + t)
    head, dims = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    mask = (head < KV_HEADS)[:, None] & (dims < D)[None, :]
    source = head[:, None] * D + dims[None, :]
    base = write // PAGE * (KV_HEADS * PAGE * D) + write % PAGE * D
    target = base + head[:, None] * (PAGE * D) + dims[None, :]
    tl.store(k_pages + target, tl.load(k + t.to(tl.int64) * k_stride + source, mask=mask), mask=mask)
    tl.store(v_pages + target, tl.load(v + t.to(tl.int64) * v_stride + source, mask=mask), mask=mask)


@triton.jit
def _rotated(x, places, mask, c, s, D: tl.constexpr):
    """Both halves of x [.., D] at `places`, pair (i, i + D/2) rotated, in float32.

    Written as what the compiler would make of products and sums, for `load_rotated` must come to the same bits.
    """
    first = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + places + D // 2, mask=mask, other=0.0).to(tl.float32)
    return tl.fma(first, c, -(second * s)), tl.fma(second, c, first * s)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=_INDICES)
def rope_store_kernel(
    q, k, v, q_stride, k_stride, v_stride, positions, cos, sin, k_pages, v_pages, writes, offsets, rows,
    EARLY: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr,
    D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Token t and key head h of grid (T, KV_HEADS), with the GROUP query heads that read h.

    q [T, GROUP * KV_HEADS, D] is rotated in place, k and v [T, KV_HEADS, D] go to place `writes[t]`, k rotated.
    HEADS: GROUP, HALF: D/2, both up to a power of two.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    t, h = tl.program_id(0), tl.program_id(1)
    if t >= tl.load(offsets + rows):
        return
    position, write = tl.load(positions + t), tl.load(writes + t)
    dims = tl.arange(0, HALF)
    inside = dims < D // 2
    c = tl.load(cos + position * (D // 2) + dims, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + position * (D // 2) + dims, mask=inside, other=0.0).to(tl.float32)
    target = write // PAGE * (KV_HEADS * PAGE * D) + h * (PAGE * D) + write % PAGE * D + dims
    first, second = _rotated(k, t.to(tl.int64) * k_stride + h * D + dims, inside, c, s, D)
    tl.store(k_pages + target, first.to(k_pages.dtype.element_ty), mask=inside)
    tl.store(k_pages + target + D // 2, second.to(k_pages.dtype.element_ty), mask=inside)
    source = t.to(tl.int64) * v_stride + h * D + dims
    tl.store(v_pages + target, tl.load(v + source, mask=inside), mask=inside)
    tl.store(v_pages + target + D // 2, tl.load(v + source + D // 2, mask=inside), mask=inside)
    member = tl.arange(0, HEADS)
    mask = (member < GROUP)[:, None] & inside[None, :]
    places = t.to(tl.int64) * q_stride + (h * GROUP + member)[:, None] * D + dims[None, :]
    first, second = _rotated(q, places, mask, c[None, :], s[None, :], D)
    tl.store(q + places, first.to(q.dtype.element_ty), mask=mask)
    tl.store(q + places + D // 2, second.to(q.dtype.element_ty), mask=mask)
