"""Sampling under all rules in Triton: adjusted logits, and what top-k, top-p and min-p leave of them.

All three filters keep a prefix of a row's order (higher logits first, equal ones by id). So a winner that a filter
refuses takes everything behind it along, and the best score before it is tried next; the row's first token is always
kept. A trial succeeds with the mass that the filters leave: mostly the first does, and its parts are judged by all
multiprocessors. No row is sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from overdrive.device.cuda.largest_kernels import mass_of_largest
from overdrive.device.cuda.sampling_state import StaticSamplingState
from overdrive.device.cuda.score_kernels import LIMIT, NOBODY, best_part, clean, take_scored, token_of
from overdrive.device.sampling import Layout, Masks

if TYPE_CHECKING:
    from overdrive.device.cuda.sampling import Scratch


def adjust(
    logits: Tensor,
    layout: Layout,
    drafts: Tensor,
    state: StaticSamplingState,
    ids: Tensor | None,
    masks: Masks | None,
    scratch: Scratch,
    parts: int,
    chunk: int,
    block: int,
) -> None:
    """Fill `scratch.adjusted`: logits after penalties, bias, bans, mask and temperature; find the parts' winners."""
    rows, vocab_size = logits.shape
    counts = state.counts
    _adjust[(rows, parts)](
        logits,
        ids if ids is not None else layout.rows,
        layout.rows,
        layout.slots,
        layout.depths,
        layout.positions,
        drafts,
        state.reals,
        state.integers,
        counts.entry,
        counts.output,
        counts.prompt,
        state.bias_ids,
        state.bias,
        state.n_biases,
        state.stop_ids,
        state.n_stops,
        masks.bits if masks is not None else layout.rows,
        masks.index if masks is not None else layout.rows,
        scratch.adjusted,
        scratch.scores,
        scratch.tops,
        scratch.columns,
        logits.stride(0),
        drafts.stride(0),
        scratch.adjusted.stride(0),
        masks.bits.stride(0) if masks is not None else 0,
        len(counts.entry),
        state.vocab_size,
        state.bias_ids.shape[1],
        state.stop_ids.shape[1],
        vocab_size,
        chunk,
        PLACES=scratch.columns.shape[1],
        MAPPED=ids is not None,
        MASKED=masks is not None,
        BLOCK=block,
    )


@triton.jit(do_not_specialize=["drafts_line"])
def _adjust(
    logits,
    ids,
    rows,
    slots,
    depths,
    positions,
    drafts,
    reals,
    integers,
    entries,
    output,
    prompt,
    bias_ids,
    bias,
    n_biases,
    stop_ids,
    n_stops,
    bits,
    masks,
    adjusted,
    scores,
    tops,
    columns,
    line,
    drafts_line,
    adjusted_line,
    words,
    n_slots,
    n_tokens,
    bias_places,
    stop_places,
    vocab_size,
    chunk,
    PLACES: tl.constexpr,
    MAPPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    temperature, seed = tl.load(reals + slot), tl.load(integers + n_slots + slot)
    hot = temperature > 0
    divisor = tl.where(hot, temperature, 1.0)
    entry, biases, stops = tl.load(entries + slot), tl.load(n_biases + slot), tl.load(n_stops + slot)
    bans = tl.where(position < tl.load(integers + 2 * n_slots + slot), stops, 0)
    past, guesses = tl.load(depths + row), drafts + tl.load(rows + row) * drafts_line
    top, best = tl.full([], float("-inf"), tl.float32), tl.full([], float("-inf"), tl.float32)
    best_column = tl.full([], NOBODY, tl.int32)
    for start in range(part * chunk, tl.minimum(part * chunk + chunk, vocab_size), BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < vocab_size
        token = token_of(ids, column, inside, MAPPED)
        x = clean(tl.load(logits + row * line + column, mask=inside, other=0.0))
        if entry >= 0:
            at = entry * n_tokens + token
            count = tl.load(output + at, mask=inside, other=0)
            for depth in range(past):
                guess = tl.minimum(tl.maximum(tl.load(guesses + depth), 0), n_tokens - 1)
                count += (token == guess).to(tl.int32)
            x = _penalised(x, count, tl.load(prompt + at, mask=inside, other=0) != 0, reals + slot, n_slots)
        for index in range(biases):
            its = tl.load(bias_ids + slot * bias_places + index)
            x = tl.where(token == its, x + tl.load(bias + slot * bias_places + index), x)
        x = tl.minimum(tl.maximum(x, -LIMIT), LIMIT)
        for index in range(bans):
            x = tl.where(token == tl.load(stop_ids + slot * stop_places + index), -10 * LIMIT, x)
        if MASKED:
            mask = tl.load(masks + row)
            word = tl.load(bits + mask * words + (token >> 5), mask=inside & (mask >= 0), other=-1)
            x = tl.where(((word >> (token & 31)) & 1) != 0, x, float("-inf"))
        x = tl.where(inside, tl.div_rn(x, divisor), float("-inf"))
        x = tl.where(x == 0, 0.0, x)  # no -0: the order of bits is then that of values
        tl.store(adjusted + row * adjusted_line + column, x, mask=inside)
        top = tl.maximum(top, tl.max(x, 0))
        best, best_column = take_scored(x, column, token, hot, seed, position, best, best_column)
    tl.store(scores + row * PLACES + part, best)
    tl.store(columns + row * PLACES + part, best_column)
    tl.store(tops + row * PLACES + part, top)


@triton.jit
def _penalised(x, count, in_prompt, real, n_slots):
    """Penalties of a slot whose reals, n_slots apart, begin at `real`, on logits whose tokens stood `count` times."""
    presence, frequency = tl.load(real + n_slots), tl.load(real + 2 * n_slots)
    repetition = tl.load(real + 3 * n_slots)
    repeated = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x = tl.where(in_prompt | (count > 0), repeated, x)
    x -= frequency * count.to(tl.float32)
    return x - presence * (count > 0).to(tl.float32)


def judge(
    layout: Layout, state: StaticSamplingState, scratch: Scratch, vocab_size: int, parts: int, chunk: int, block: int
) -> None:
    """Count what stands before the winner, by parts, in rows with top-k or top-p."""
    _judge[(len(layout.slots), parts)](
        layout.slots,
        state.reals,
        state.integers,
        state.top_p,
        scratch.adjusted,
        scratch.scores,
        scratch.tops,
        scratch.columns,
        scratch.ahead,
        scratch.before,
        scratch.total,
        scratch.n_near,
        scratch.adjusted.stride(0),
        state.vocab_size,
        vocab_size,
        chunk,
        parts,
        PLACES=scratch.columns.shape[1],
        BLOCK=block,
    )


@triton.jit(do_not_specialize=["parts"])
def _judge(
    slots,
    reals,
    integers,
    top_ps,
    adjusted,
    scores,
    tops,
    columns,
    ahead,
    before,
    total,
    n_near,
    adjusted_line,
    n_tokens,
    vocab_size,
    chunk,
    parts,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    filtered = (tl.load(integers + slot) < n_tokens) | (tl.load(top_ps + slot) < 1)
    if (tl.load(reals + slot) > 0) & filtered:
        winner = best_part(scores, columns, row, parts, PLACES)
        top = best_of(tops + row * PLACES, parts, PLACES)
        line = adjusted + row * adjusted_line
        begin, end = part * chunk, tl.minimum(part * chunk + chunk, vocab_size)
        count, mass, whole = standing_before(line, begin, end, tl.load(line + winner), winner, top, BLOCK)
        tl.store(ahead + row * PLACES + part, count)
        tl.store(before + row * PLACES + part, mass)
        tl.store(total + row * PLACES + part, whole)
        tl.store(n_near + row, 0, mask=part == 0)


@triton.jit
def best_of(tops, parts, PLACES: tl.constexpr):
    """The largest of a row's parts."""
    part = tl.arange(0, PLACES)
    return tl.max(tl.load(tops + part, mask=part < parts, other=float("-inf")), 0)


@triton.jit
def standing_before(line, begin, end, value, winner, top, BLOCK: tl.constexpr):
    """Of columns begin .. end: how many stand before (value, winner), their mass, and the mass of all.

    Mass is exp(logit - top), summed in float64: what is kept must not depend on how a row is divided.
    """
    count, mass, whole = tl.full([], 0, tl.int32), tl.full([], 0, tl.float64), tl.full([], 0, tl.float64)
    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(line + column, mask=column < end, other=float("-inf"))
        earlier = (x > value) | ((x == value) & (column < winner))
        share = tl.where(x > float("-inf"), tl.exp(x - top), 0.0).to(tl.float64)
        count += tl.sum(earlier.to(tl.int32), 0)
        mass += tl.sum(tl.where(earlier, share, 0.0), 0)
        whole += tl.sum(share, 0)
    return count, mass, whole


def settle(
    layout: Layout,
    state: StaticSamplingState,
    ids: Tensor | None,
    out: Tensor,
    scratch: Scratch,
    vocab_size: int,
    parts: int,
) -> None:
    """Write the tokens: the winner where the filters keep it, else the best that they keep. One program a row."""
    _settle[(len(out),)](
        ids if ids is not None else out,
        layout.slots,
        layout.positions,
        state.reals,
        state.integers,
        state.top_p,
        scratch.adjusted,
        scratch.scores,
        scratch.tops,
        scratch.columns,
        scratch.ahead,
        scratch.before,
        scratch.total,
        scratch.near,
        scratch.n_near,
        out,
        out.stride(0),
        scratch.adjusted.stride(0),
        len(state.top_p),
        state.vocab_size,
        vocab_size,
        parts,
        MAPPED=ids is not None,
        PLACES=scratch.columns.shape[1],
        BLOCK=scratch.near.shape[1],
        num_warps=16,
    )


@triton.jit(do_not_specialize=["parts", "step"])
def _settle(
    ids,
    slots,
    positions,
    reals,
    integers,
    top_ps,
    adjusted,
    scores,
    tops,
    columns,
    ahead,
    before,
    total,
    near,
    n_near,
    out,
    step,
    adjusted_line,
    n_slots,
    n_tokens,
    vocab_size,
    parts,
    MAPPED: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    k, p, log_min_p = tl.load(integers + slot), tl.load(top_ps + slot), tl.load(reals + 4 * n_slots + slot)
    has_k, has_p = k < n_tokens, p < 1
    winner = best_part(scores, columns, row, parts, PLACES)
    if (tl.load(reals + slot) > 0) & (has_k | has_p | (log_min_p > float("-inf"))):
        seed, position = tl.load(integers + n_slots + slot), tl.load(positions + row)
        line = adjusted + row * adjusted_line
        top = best_of(tops + row * PLACES, parts, PLACES)
        least = top + log_min_p
        value = tl.load(line + winner)
        part = tl.arange(0, PLACES)
        at, real = row * PLACES + part, part < parts
        # Without top-k and top-p nobody counted; what stands there is not looked at either.
        count = tl.sum(tl.load(ahead + at, mask=real, other=0), 0)
        mass = tl.sum(tl.load(before + at, mask=real, other=0), 0)
        whole = tl.sum(tl.load(total + at, mask=real, other=0), 0)
        if has_k & has_p:
            few = tl.minimum(k, vocab_size).to(tl.int32)
            whole = mass_of_largest(line, near + row * BLOCK, n_near + row, vocab_size, few, top, BLOCK)
        kept = (value >= least) & ((count < k) | (has_k == 0)) & ((mass < p * whole) | (count == 0) | (has_p == 0))
        while kept == 0:
            winner = _best_before(line, ids, vocab_size, value, winner, least, seed, position, MAPPED, BLOCK)
            value = tl.load(line + winner)
            if has_k | has_p:
                count, mass, _ = standing_before(line, 0, vocab_size, value, winner, top, BLOCK)
            kept = ((count < k) | (has_k == 0)) & ((mass < p * whole) | (count == 0) | (has_p == 0))
    tl.store(out + row * step, token_of(ids, winner, winner >= 0, MAPPED).to(tl.int64))


@triton.jit
def _best_before(
    line, ids, vocab_size, value, winner, least, seed, position, MAPPED: tl.constexpr, BLOCK: tl.constexpr
):
    """Column of the best score among logits of at least `least` that stand before (value, winner)."""
    best, best_column = tl.full([], float("-inf"), tl.float32), tl.full([], NOBODY, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < vocab_size
        x = tl.load(line + column, mask=inside, other=float("-inf"))
        earlier = ((x > value) | ((x == value) & (column < winner))) & (x >= least)
        x = tl.where(earlier, x, float("-inf"))
        token = token_of(ids, column, inside, MAPPED)
        best, best_column = take_scored(x, column, token, True, seed, position, best, best_column)
    return tl.where(best_column == NOBODY, 0, best_column)
