"""How much mass the k largest logits of a row have, in Triton, without sorting the row: what top-p takes its share of
where top-k goes before it. Functions of one program that has the row to itself.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mass_of_largest(line, near, n_near, vocab_size, k, top, BLOCK: tl.constexpr):
    """Mass of the k largest logits, float64.

    Of BLOCK lanes that share out the row, the k-th largest of their maxima is a bound that at least k logits reach, and
    mostly few more: those are gathered in `near` [BLOCK], in any order. n_near: int32, 0 before.
    """
    lane = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        most = tl.maximum(most, tl.load(line + start + lane, mask=start + lane < vocab_size, other=float("-inf")))
    bound = _kth(_ordered(most), k)
    count = tl.where(k <= BLOCK, 0, BLOCK + 1)
    if k <= BLOCK:
        for start in range(0, vocab_size, BLOCK):
            inside = start + lane < vocab_size
            x = tl.load(line + start + lane, mask=inside, other=float("-inf"))
            reaches = inside & (_ordered(x) >= bound)
            count += tl.sum(reaches.to(tl.int32), 0)
            place = tl.atomic_add(n_near + lane * 0, lane * 0 + 1, mask=reaches, sem="relaxed")
            tl.store(near + place, x, mask=reaches & (place < BLOCK))
    tl.debug_barrier()
    if count <= BLOCK:
        x = tl.load(near + lane, mask=lane < count, other=float("-inf"), cache_modifier=".cg")
        kth = _kth(_ordered(x), k)
        mass, larger = _mass_above(x, kth, top)
    else:
        kth = _kth_of_row(line, vocab_size, k, BLOCK)
        mass, larger = tl.full([], 0, tl.float64), tl.full([], 0, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            x = tl.load(line + start + lane, mask=start + lane < vocab_size, other=float("-inf"))
            more, how_many = _mass_above(x, kth, top)
            mass, larger = mass + more, larger + how_many
    bits = tl.where((kth >> 31) != 0, kth ^ 0x80000000, kth ^ 0xFFFFFFFF)
    return mass + tl.exp(bits.to(tl.float32, bitcast=True) - top).to(tl.float64) * (k - larger).to(tl.float64)


@triton.jit
def _mass_above(x, bound, top):
    """Mass and number of the logits of a block that are larger than the one of the ordered bits `bound`."""
    above = _ordered(x) > bound
    mass = tl.sum(tl.where(above, tl.exp(x - top), 0.0).to(tl.float64), 0)
    return mass, tl.sum(above.to(tl.int32), 0)


@triton.jit
def _kth(ordered, k):
    """The k-th largest of a block's ordered bits, found bit by bit; 0 where there are fewer."""
    found, bit = tl.full([], 0, tl.uint32), tl.full([], 0x80000000, tl.uint32)
    for _ in range(32):
        trial = found | bit
        reached = tl.sum((ordered >= trial).to(tl.int32), 0)
        found, bit = tl.where(reached >= k, trial, found), bit >> 1
    return found


@triton.jit
def _kth_of_row(line, vocab_size, k, BLOCK: tl.constexpr):
    """As `_kth`, of a whole row: for flat rows and very large k."""
    found, bit = tl.full([], 0, tl.uint32), tl.full([], 0x80000000, tl.uint32)
    for _ in range(32):
        trial = found | bit
        reached = tl.full([], 0, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(line + column, mask=column < vocab_size, other=0.0)
            reached += tl.sum(((column < vocab_size) & (_ordered(x) >= trial)).to(tl.int32), 0)
        found, bit = tl.where(reached >= k, trial, found), bit >> 1
    return found


@triton.jit
def _ordered(x):
    """uint32 that are ordered as the float32 are."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
