"""The sampling rules of `overdrive.device.sampling`, row by row in numba: the same tokens without sorting a vocabulary.

Each row is independent of its neighbours and of the number of threads. Noise is below NOISE_BOUND, and noise above g
needs a hash below 2^32 e^-g (since -log1p(-v) >= v): hashes come from vector code, logarithms are taken only for tokens
that can still win. Against the reference, equal but for near-ties: its logarithms round differently.
"""

from __future__ import annotations

from math import exp as math_exp
from math import log, log1p
from typing import NamedTuple

import numpy as np

from overdrive.device.cpu.filters import BLOCK, NO_CUT, block_maxima, inner, top_k_cut, top_p_cut
from overdrive.device.noise import NOISE_BOUND
from overdrive.device.sampling import LIMIT, LOWEST

U = np.uint32


class Rule(NamedTuple):
    """Scalars of one logit row, as in `SamplingState`; position is that of the token to draw."""

    temperature: float
    presence: float
    frequency: float
    repetition: float
    log_min_p: float
    top_p: float
    top_k: int
    seed: int
    position: int


class Lists(NamedTuple):
    """Arrays of one logit row. output [V], prompt [V]: its token counts, empty without penalties.

    past: [depth] drafts before it. bias_ids, bias: its biases, ids padded with -1. banned: stop ids not yet allowed,
    padded with -1. words: [ceil(V / 32)] its grammar mask, empty without one.
    """

    output: np.ndarray
    prompt: np.ndarray
    past: np.ndarray
    bias_ids: np.ndarray
    bias: np.ndarray
    banned: np.ndarray
    words: np.ndarray


class Scratch(NamedTuple):
    """Memory of one thread. x: [V] and folded: [BLOCK // 2], of the logits' type; ids: [V] int32; work: float64.

    maxima: [ceil(V / BLOCK)], the maxima of blocks of x. hashes: [BLOCK] uint32. work: [2 * BINS].
    """

    x: np.ndarray
    ids: np.ndarray
    maxima: np.ndarray
    folded: np.ndarray
    hashes: np.ndarray
    work: np.ndarray


@inner
def draw_row(logits, rule, lists, scratch):
    """The token that logits [V] draw."""
    x, maxima = scratch.x, scratch.maxima
    adjusted = len(lists.output) > 0 or lists.bias_ids[0] >= 0
    adjusted = adjusted or (len(lists.banned) > 0 and lists.banned[0] >= 0)
    if rule.temperature == 0 and not adjusted:
        if _narrow(lists.words):
            return _best_allowed(logits, lists.words)
        best = block_maxima(logits, maxima, scratch.folded)
        if abs(best) < LIMIT:  # else NaN or infinities are about, which `_adjust` cleans
            first = _first_of(logits, maxima, best)
            if len(lists.words) == 0 or (lists.words[first >> 5] >> (first & 31)) & 1:
                return first  # what a wide mask mostly allows
    _adjust(x, logits, rule, lists)
    if rule.temperature > 0:
        for i in range(len(x)):
            x[i] = x[i] / rule.temperature
    best = block_maxima(x, maxima, scratch.folded)
    if best == -np.inf:
        return 0
    if rule.temperature == 0:
        return _first_of(x, maxima, best)
    cut, cut_id = type(best)(-np.inf), NO_CUT
    if rule.top_k < len(x):
        cut, cut_id = top_k_cut(x, maxima, rule.top_k, scratch.ids)
    if rule.top_p < 1:
        cut, cut_id = top_p_cut(x, maxima, best, rule.top_p, cut, cut_id, scratch.ids, scratch.work)
    return _draw(x, maxima, best, cut, cut_id, rule, scratch.hashes)


@inner
def _adjust(x, logits, rule, lists):
    """Clean logits after penalties, bias, min_tokens and mask into x."""
    if len(lists.output):
        for i in range(len(x)):
            x[i] = _penalise(logits[i], lists.output[i], lists.prompt[i], rule)
        for draft in lists.past:
            token = min(max(draft, 0), len(x) - 1)
            count = lists.output[token]
            for other in lists.past:
                count = np.int32(count + (min(max(other, 0), len(x) - 1) == token))
            x[token] = _penalise(logits[token], count, lists.prompt[token], rule)
    else:
        for i in range(len(x)):
            x[i] = _finite(logits[i])
    for j in range(len(lists.bias)):
        if lists.bias_ids[j] >= 0:
            x[lists.bias_ids[j]] = _finite(x[lists.bias_ids[j]] + lists.bias[j])
    for token in lists.banned:
        if token >= 0:
            x[token] = -10 * LIMIT
    if len(lists.words):
        _mask(x, lists.words)


@inner
def _finite(value):
    """NaN is the lowest logit."""
    value = value if value > -LIMIT else type(value)(-LIMIT)
    return value if value < LIMIT else type(value)(LIMIT)


@inner
def _penalise(logit, count, in_prompt, rule):
    value = _finite(logit)
    if in_prompt or count > 0:
        value = value / rule.repetition if value > 0 else value * rule.repetition
    if count > 0:
        value = (value - rule.frequency * type(value)(count)) - rule.presence
    return _finite(value)


@inner
def _mask(x, words):
    """-inf where the token's bit is not set."""
    for first in range(0, len(x), 32):
        word = words[first >> 5]
        if word == -1:
            continue
        for bit in range(min(32, len(x) - first)):
            if not (word >> bit) & 1:
                x[first + bit] = -np.inf


@inner
def _narrow(words):
    """Whether a mask leaves so little that looking at that alone is quickest."""
    empty = 0
    for word in words:
        empty += word == 0
    return 4 * empty > 3 * len(words)


@inner
def _best_allowed(logits, words):
    """The first of the largest logits whose bits are set; 0 where none is."""
    best, winner = type(logits[0])(-np.inf), 0
    for first in range(0, len(logits), 32):
        word = words[first >> 5]
        if word == 0:
            continue
        for bit in range(min(32, len(logits) - first)):
            if (word >> bit) & 1:
                value = _finite(logits[first + bit])
                if value > best:
                    best, winner = value, first + bit
    return winner


@inner
def _first_of(x, maxima, best):
    for block in range(len(maxima)):
        if maxima[block] == best:
            for i in range(block * BLOCK, len(x)):
                if x[i] == best:
                    return i
    return 0


@inner
def _draw(x, maxima, best, cut, cut_id, rule, hashes):
    """Argmax of x + noise over the tokens that survive the cuts and min-p, the lower id of equals."""
    a, b = _position_key(rule.seed, rule.position)
    winner = _first_of(x, maxima, best)
    score = _score(x[winner], _hash(a, b, U(winner)))
    lowest_kept = best + rule.log_min_p
    for block in range(len(maxima)):
        top = maxima[block]
        if type(top)(top + NOISE_BOUND) < score or top < cut or top < lowest_kept or top == -np.inf:
            continue
        first = block * BLOCK
        size = min(BLOCK, len(x) - first)
        lowest = U(0xFFFFFFFF)
        for i in range(size):
            hashes[i] = _hash(a, b, U(first + i))
            lowest = min(lowest, hashes[i])
        bound = _hash_bound(top, score)
        if lowest > bound:
            continue
        for i in range(size):
            value, token = x[first + i], first + i
            if hashes[i] > bound or value < lowest_kept or value == -np.inf:
                continue
            if value < cut or (cut_id != NO_CUT and value == cut and token > cut_id):
                continue
            mine = _score(value, hashes[i])
            if mine > score or (mine == score and token < winner):
                winner, score = token, mine
                bound = _hash_bound(top, score)
    return winner


@inner
def _hash_bound(top, score):
    """No hash above this lets a logit of `top` reach `score`; the slack covers rounding in x's own precision."""
    slack = 1e-3 + 1e-6 * abs(score)
    return U(min(4294967296.0 * math_exp(min(top - score + slack, 0.0)), 4294967295.0))


@inner
def _score(value, h):
    """value + noise of the hash, in value's precision; never -inf, so that it beats what was filtered out."""
    one = type(value)(1)
    v = (type(value)(h) + type(value)(0.5)) * type(value)(2.0**-32)
    noise = -log(-log1p(-v)) if v < one else -np.inf
    return max(type(value)(value + type(value)(noise)), type(value)(LOWEST))


@inner
def _fmix32(h):
    h = U(h ^ (h >> U(16)))
    h = U(h * U(0x85EBCA6B))
    h = U(h ^ (h >> U(13)))
    h = U(h * U(0xC2B2AE35))
    return U(h ^ (h >> U(16)))


@inner
def _position_key(seed, position):
    """As `overdrive.device.noise.position_key`."""
    a = _fmix32(U(U(seed) ^ _fmix32(U(U(position) + U(0x9E3779B9)))))
    b = _fmix32(U(U(seed >> 32) ^ _fmix32(U(a + U(0x7F4A7C15)))))
    return a, b


@inner
def _hash(a, b, token):
    return _fmix32(U(_fmix32(U(token + a)) ^ b))
