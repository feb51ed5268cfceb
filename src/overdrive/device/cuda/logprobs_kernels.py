"""`logprobs.score` in Triton: parts of rows find their largest logits, their mass and who is ahead; rows join them.

A logit and its id are one int64 whose order is that of the ranking: the logit's bits above, in a form that keeps their
order, and below them the id, from the highest down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from overdrive.device.cuda.score_kernels import clean

if TYPE_CHECKING:
    from overdrive.device.cuda.logprobs import Scores

BLOCK = 1024
"""Logits of a part, at least."""

NOTHING = tl.constexpr(-(2**63))
"""A key behind all keys."""


def score(logits: Tensor, tokens: Tensor, scores: Scores) -> None:
    """As `logprobs.score`. A part is one block where there are enough places for parts."""
    rows, vocab_size = logits.shape
    places = scores.tops.shape[1]
    block = max(BLOCK, triton.next_power_of_2(triton.cdiv(vocab_size, places)))
    parts = triton.cdiv(vocab_size, block)
    found, n = scores.of(rows), scores.n
    _parts[(rows, parts)](
        logits,
        tokens,
        scores.tops,
        scores.masses,
        scores.ahead,
        scores.keys,
        logits.stride(0),
        places,
        vocab_size,
        N=n,
        BLOCK=block,
    )
    _join[(rows,)](
        logits,
        tokens,
        scores.tops,
        scores.masses,
        scores.ahead,
        scores.keys,
        found.chosen,
        found.ranks,
        found.top_ids,
        found.top,
        logits.stride(0),
        places,
        parts,
        N=n,
        PADDED=triton.next_power_of_2(parts),
        KEYS=triton.next_power_of_2(max(1, parts * n)),
        num_warps=8,
    )


@triton.jit
def _parts(logits, tokens, tops, masses, ahead, keys, line, places, vocab_size, N: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab_size
    x = clean(tl.load(logits + row * line + column, mask=inside, other=0.0))
    token = tl.load(tokens + row)
    its = clean(tl.load(logits + row * line + token))
    before = inside & ((x > its) | ((x == its) & (column < token)))
    x = tl.where(inside, x, float("-inf"))
    top = tl.max(x, 0)
    at = row * places + part
    tl.store(tops + at, top)
    tl.store(masses + at, tl.sum(tl.exp(x - top), 0))
    tl.store(ahead + at, tl.sum(before.to(tl.int32), 0))
    if N > 0:
        left = tl.where(inside, _key(x, column), NOTHING)
        for index in range(N):
            best = tl.max(left, 0)
            tl.store(keys + at * N + index, best)
            left = tl.where(left == best, NOTHING, left)


@triton.jit
def _key(x, column):
    """int64 that are ordered as logits are, equal ones by their column from the last to the first."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _join(
    logits,
    tokens,
    tops,
    masses,
    ahead,
    keys,
    chosen,
    ranks,
    top_ids,
    top_values,
    line,
    places,
    parts,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    at, real = row * places + part, part < parts
    top_of = tl.load(tops + at, mask=real, other=float("-inf"))
    top = tl.max(top_of, 0)
    mass = tl.sum(tl.load(masses + at, mask=real, other=0.0) * tl.exp(top_of - top), 0)
    norm = top + tl.log(mass)
    its = clean(tl.load(logits + row * line + tl.load(tokens + row)))
    tl.store(chosen + row, its - norm)
    tl.store(ranks + row, tl.sum(tl.load(ahead + at, mask=real, other=0), 0).to(tl.int64) + 1)
    if N > 0:
        index = tl.arange(0, KEYS)
        left = tl.load(keys + row * places * N + index, mask=index < parts * N, other=NOTHING)
        for best_of in range(N):
            best = tl.max(left, 0)
            bits = (best >> 32).to(tl.int32)
            value = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
            there = best != NOTHING
            tl.store(top_ids + row * N + best_of, tl.where(there, 0x7FFFFFFF - (best & 0x7FFFFFFF), 0))
            tl.store(top_values + row * N + best_of, tl.where(there, value - norm, 0.0))
            left = tl.where(left == best, NOTHING, left)
