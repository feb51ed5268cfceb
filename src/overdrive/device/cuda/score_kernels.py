"""What every sampling kernel does with a block of logits: make them finite, add noise, keep the best.

A logit is known by its column. Of equal ones the lower column wins, whose token id is the lower one too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overdrive.device import noise, sampling
from overdrive.device.cuda.noise_kernels import gumbel, keyed_hash, position_key

LIMIT = tl.constexpr(sampling.LIMIT)
LOWEST = tl.constexpr(sampling.LOWEST)
NOISE_BOUND = tl.constexpr(noise.NOISE_BOUND)
WORDS = tl.constexpr(1.0001 * 2**32)
"""How many hashes there are, with a margin for what rounds."""

NOBODY = tl.constexpr(2**31 - 1)
"""A column behind all columns."""


@triton.jit
def clean(x):
    """float32, NaN the lowest and infinities the limits."""
    x = x.to(tl.float32)
    x = tl.where(x == x, x, -LIMIT)
    return tl.minimum(tl.maximum(x, -LIMIT), LIMIT)


@triton.jit
def token_of(ids, column, inside, MAPPED: tl.constexpr):
    """Token ids of columns: a draft network may have fewer than the target."""
    if MAPPED:
        token = tl.load(ids + column, mask=inside, other=0).to(tl.int32)
    else:
        token = column
    return token


@triton.jit
def take_best(score, column, best, best_column):
    """The better of the best so far and a block's. score: [BLOCK], -inf where nobody stands."""
    top = tl.max(score, 0)
    its = tl.min(tl.where(score == top, column, NOBODY), 0)
    wins = (top > best) | ((top == best) & (its < best_column))
    return tl.where(wins, top, best), tl.where(wins, its, best_column)


@triton.jit
def take_scored(x, column, token, hot, seed, position, best, best_column):
    """As `take_best`, of logits over temperature plus noise; without noise where the row is not hot.

    Noise has a bound: a block whose logits cannot reach the best so far is not hashed. And -log1p(-v) is at least v:
    noise above g has a hash below 2^32 e^-g, so most hashes tell without a logarithm that they do not win.
    """
    if hot:
        top = tl.max(x, 0)
        if (top + NOISE_BOUND >= best) & (top > float("-inf")):
            a, b = position_key(seed, position)
            h = keyed_hash(a, b, token)
            reaches = h.to(tl.float32) <= tl.exp(x - best) * WORDS
            if tl.max(reaches.to(tl.int32), 0) > 0:
                score = tl.maximum(x + gumbel(h), LOWEST)
                score = tl.where(x > float("-inf"), score, float("-inf"))
                best, best_column = take_best(score, column, best, best_column)
    else:
        best, best_column = take_best(x, column, best, best_column)
    return best, best_column


@triton.jit
def best_part(scores, columns, row, parts, PLACES: tl.constexpr):
    """A row's winner among those of its parts; column 0 where no part has one."""
    part = tl.arange(0, PLACES)
    score = tl.load(scores + row * PLACES + part, mask=part < parts, other=float("-inf"))
    column = tl.load(columns + row * PLACES + part, mask=part < parts, other=NOBODY)
    winner = tl.min(tl.where(score == tl.max(score, 0), column, NOBODY), 0)
    return tl.where(winner == NOBODY, 0, winner)
