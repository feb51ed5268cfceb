"""The sampling rules of `overdrive.device.sampling`, row by row in numba: the same tokens without sorting a vocabulary.

Each row is independent of its neighbours and of the number of threads. Noise is below NOISE_BOUND, and noise above g
needs a hash below 2^32 e^-g (since -log1p(-v) >= v): hashes come from vector code, logarithms are taken only for tokens
that can still win. Against the reference, equal but for near-ties: its logarithms round differently.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import ceil, log, log1p
from math import exp as math_exp

import numba
import numpy as np
import torch
from torch import Tensor

from overdrive.device.cpu.filters import BLOCK, NO_CUT, block_maxima, inner, top_k_cut, top_p_cut
from overdrive.device.noise import NOISE_BOUND
from overdrive.device.sampling import LIMIT, Layout, Masks, SamplingState

U = np.uint32


class CpuSampler:
    """A `Sampler` on the CPU. threads: how many rows are drawn at once; one call at a time."""

    def __init__(self, vocab_size: int, dtype: torch.dtype, threads: int) -> None:
        self._threads = threads
        self._row = torch.empty((threads, vocab_size), dtype=dtype).numpy()
        self._ids = np.empty((threads, vocab_size), np.int32)
        self._pool = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="overdrive-sampler")
        self._no_bits = np.empty((0, 0), np.int32)

    def __call__(
        self, logits: Tensor, layout: Layout, drafts: Tensor, state: SamplingState, masks: Masks | None = None
    ) -> Tensor:
        """As `overdrive.device.sampling.sample`."""
        tokens = torch.empty(len(logits), dtype=torch.int64)
        index = masks.index if masks is not None else torch.full_like(layout.rows, -1)
        arguments = (
            logits.to(state.dtype).contiguous().numpy(),
            (layout.rows.numpy(), layout.slots.numpy(), layout.depths.numpy(), layout.positions.numpy()),
            drafts.contiguous().numpy(),
            (state.temperature.numpy(), state.top_k.numpy(), state.top_p.numpy(), state.log_min_p.numpy()),
            (state.repetition.numpy(), state.frequency.numpy(), state.presence.numpy(), state.counts.entry.numpy()),
            (state.counts.output.numpy(), state.counts.prompt.numpy()),
            (state.bias_ids.numpy(), state.bias.numpy()),
            (state.stop_ids.numpy(), state.stops_from.numpy()),
            state.seed.numpy(),
            (masks.bits.numpy() if masks is not None else self._no_bits, index.numpy()),
            tokens.numpy(),
        )
        parts = min(self._threads, len(logits))
        others = [
            self._pool.submit(_draw_rows, part, parts, self._row[part], self._ids[part], *arguments)
            for part in range(1, parts)
        ]
        if parts:
            _draw_rows(0, parts, self._row[0], self._ids[0], *arguments)
        for other in others:
            other.result()
        return tokens


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _draw_rows(
    first, step, x, ids, logits, layout, drafts, filters, penalties, counts, biases, stops, seeds, masks, tokens
):
    """Draw rows first, first + step, ... of the batch. x: [V], ids: [V], scratch of this thread."""
    rows, slots, depths, positions = layout
    maxima = np.empty(ceil(len(x) / BLOCK), x.dtype)
    for n in range(first, len(logits), step):
        slot, position = slots[n], positions[n]
        temperature = filters[0][slot]
        adjusted = _is_adjusted(slot, position, penalties, biases, stops) or masks[1][n] >= 0
        if temperature == 0 and not adjusted:
            best = block_maxima(logits[n], maxima)
            if abs(best) < LIMIT:  # else NaN or infinities are about, which `_adjust` cleans
                tokens[n] = _first_of(logits[n], maxima, best)
                continue
        past = drafts[rows[n], : depths[n]]
        _adjust(x, logits[n], slot, position, past, penalties, counts, biases, stops)
        if masks[1][n] >= 0:
            _mask(x, masks[0][masks[1][n]])
        if temperature > 0:
            for i in range(len(x)):
                x[i] = x[i] / temperature
        best = block_maxima(x, maxima)
        if best == -np.inf:
            tokens[n] = 0
        elif temperature == 0:
            tokens[n] = _first_of(x, maxima, best)
        else:
            cut, cut_id = _cut(x, maxima, best, filters[1][slot], filters[2][slot], ids)
            cut_min = best + filters[3][slot]
            tokens[n] = _draw(x, maxima, best, cut, cut_id, cut_min, seeds[slot], position)


@inner
def _is_adjusted(slot, position, penalties, biases, stops):
    early = position < stops[1][slot] and stops[0][slot, 0] >= 0
    return early or penalties[3][slot] >= 0 or biases[0][slot, 0] >= 0


@inner
def _adjust(x, logits, slot, position, past, penalties, counts, biases, stops):
    """Clean logits after penalties, bias and min_tokens into x. past: [depth] drafts before this position."""
    entry = penalties[3][slot]
    if entry < 0:
        for i in range(len(x)):
            x[i] = _finite(logits[i])
    else:
        repetition, frequency, presence = penalties[0][slot], penalties[1][slot], penalties[2][slot]
        output, prompt = counts[0][entry], counts[1][entry]
        for i in range(len(x)):
            x[i] = _penalise(_finite(logits[i]), output[i], prompt[i], repetition, frequency, presence)
        for draft in past:
            token = min(max(draft, 0), len(x) - 1)
            count = output[token]
            for other in past:
                count += np.int32(min(max(other, 0), len(x) - 1) == token)
            x[token] = _penalise(_finite(logits[token]), count, prompt[token], repetition, frequency, presence)
    for j in range(biases[0].shape[1]):
        token = biases[0][slot, j]
        if token < 0:
            break
        x[token] = _finite(x[token] + biases[1][slot, j])
    if position < stops[1][slot]:
        for j in range(stops[0].shape[1]):
            if stops[0][slot, j] >= 0:
                x[stops[0][slot, j]] = -10 * LIMIT


@inner
def _finite(value):
    """NaN is the lowest logit."""
    value = value if value > -LIMIT else type(value)(-LIMIT)
    return value if value < LIMIT else type(value)(LIMIT)


@inner
def _penalise(value, count, in_prompt, repetition, frequency, presence):
    if in_prompt or count > 0:
        value = value / repetition if value > 0 else value * repetition
    if count > 0:
        value = (value - frequency * type(frequency)(count)) - presence
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
def _first_of(x, maxima, best):
    for block in range(len(maxima)):
        if maxima[block] == best:
            for i in range(block * BLOCK, len(x)):
                if x[i] == best:
                    return i
    return 0


@inner
def _cut(x, maxima, best, top_k, top_p, ids):
    """Where top-k and top-p end, as (value, id); see filters.py."""
    cut, cut_id = x.dtype.type(-np.inf), np.int64(NO_CUT)
    if top_k < len(x):
        cut, cut_id = top_k_cut(x, maxima, top_k)
    if top_p < 1:
        cut, cut_id = top_p_cut(x, maxima, best, top_p, cut, cut_id, ids)
    return cut, cut_id


@inner
def _draw(x, maxima, best, cut, cut_id, cut_min, seed, position):
    """Argmax of x + noise over the tokens that survive the cuts, the lower id of equals."""
    a, b = _position_key(seed, position)
    hashes = np.empty(BLOCK, np.uint32)
    winner = _first_of(x, maxima, best)
    score = _score(x[winner], _hash(a, b, U(winner)))
    for block in range(len(maxima)):
        top = maxima[block]
        if top + NOISE_BOUND < score or top < cut or top < cut_min or top == -np.inf:
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
            if hashes[i] > bound or value < cut_min or value == -np.inf:
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
    """value + noise of the hash, in value's precision; finite, so that it beats what was filtered out."""
    one = type(value)(1)
    v = (type(value)(h) + one / 2) * type(value)(2.0**-32)
    noise = -log(-log1p(-v)) if v < one else -np.inf
    return max(type(value)(value + type(value)(noise)), np.finfo(type(value)).min)


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
