"""The rules of `overdrive.device.sampling` in Triton, launched by what a step's rows need.

plain, noisy   parts of a row each find their winner; a second launch finds the row's.
full           the same over adjusted logits, which are kept; then filters judge the winner (filter_kernels.py).

Imported when the first tensor on CUDA arrives. Equal to the reference but for near-ties: logarithms round differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from overdrive.device.cuda.filter_kernels import adjust, judge, settle
from overdrive.device.cuda.sampling_state import Rules, StaticSamplingState
from overdrive.device.cuda.score_kernels import NOBODY, best_part, clean, take_scored, token_of
from overdrive.device.sampling import Layout, Masks
from overdrive.device.token_counts import TokenCounts
from overdrive.types import MAX_DRAFTS

if TYPE_CHECKING:
    from overdrive.device.cuda.sampling import Scratch

PROGRAMS = 1024
"""Programs that a launch should have at least: few rows are spread over all multiprocessors."""

BLOCK = 1024
"""Logits that a program looks at at once."""


def draw(
    logits: Tensor,
    layout: Layout,
    drafts: Tensor,
    state: StaticSamplingState,
    rules: Rules,
    ids: Tensor | None,
    out: Tensor,
    masks: Masks | None,
    scratch: Scratch,
) -> None:
    """As `CudaSampler.draw`. All rules take as many rows at once as there is room for their adjusted logits."""
    rows, step = len(logits), len(scratch.adjusted) if rules == "full" else len(logits)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        mine = Layout(layout.rows[part], layout.slots[part], layout.depths[part], layout.positions[part])
        if rules == "full":
            mask = Masks(masks.bits, masks.index[part]) if masks is not None else None
            _draw_full(logits[part], mine, drafts, state, ids, out[part], mask, scratch)
        else:
            _draw_free(logits[part], mine, state, rules == "noisy", ids, out[part], scratch)


def split(rows: int, vocab_size: int, most: int) -> tuple[int, int]:
    """Parts of a row, and logits of a part: a multiple of BLOCK."""
    blocks = triton.cdiv(vocab_size, BLOCK)
    parts = max(1, min(blocks, most, triton.cdiv(PROGRAMS, rows)))
    chunk = triton.cdiv(blocks, parts)
    return triton.cdiv(blocks, chunk), chunk * BLOCK


def _draw_free(
    logits: Tensor,
    layout: Layout,
    state: StaticSamplingState,
    noisy: bool,
    ids: Tensor | None,
    out: Tensor,
    scratch: Scratch,
) -> None:
    rows, vocab_size = logits.shape
    places = scratch.columns.shape[1]
    parts, chunk = split(rows, vocab_size, places)
    _best[(rows, parts)](
        logits,
        ids if ids is not None else out,
        layout.slots,
        layout.positions,
        state.temperature,
        state.seed,
        scratch.scores,
        scratch.columns,
        logits.stride(0),
        vocab_size,
        chunk,
        PLACES=places,
        NOISY=noisy,
        MAPPED=ids is not None,
        BLOCK=BLOCK,
    )
    _winner[(rows,)](
        scratch.scores,
        scratch.columns,
        ids if ids is not None else out,
        out,
        out.stride(0),
        parts,
        PLACES=places,
        MAPPED=ids is not None,
        num_warps=1,
    )


@triton.jit
def _best(
    logits,
    ids,
    slots,
    positions,
    temperatures,
    seeds,
    scores,
    columns,
    line,
    vocab_size,
    chunk,
    PLACES: tl.constexpr,
    NOISY: tl.constexpr,
    MAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best score of each part of each row, and its column."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = part * chunk, tl.minimum(part * chunk + chunk, vocab_size)
    if NOISY:
        slot, position = tl.load(slots + row), tl.load(positions + row)
        temperature, seed = tl.load(temperatures + slot), tl.load(seeds + slot)
        hot = temperature > 0
        divisor = tl.where(hot, temperature, 1.0)
        best, best_column = tl.full([], float("-inf"), tl.float32), tl.full([], NOBODY, tl.int32)
        for start in range(begin, end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < vocab_size
            x = clean(tl.load(logits + row * line + column, mask=inside, other=0.0))
            x = tl.where(inside, tl.div_rn(x, divisor), float("-inf"))
            token = token_of(ids, column, inside, MAPPED)
            best, best_column = take_scored(x, column, token, hot, seed, position, best, best_column)
        tl.store(scores + row * PLACES + part, best)
        tl.store(columns + row * PLACES + part, best_column)
    else:
        # Every lane keeps its own best: one reduction in the end.
        bests = tl.full([BLOCK], float("-inf"), tl.float32)
        best_columns = tl.full([BLOCK], NOBODY, tl.int32)
        for start in range(begin, end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < vocab_size
            x = clean(tl.load(logits + row * line + column, mask=inside, other=0.0))
            wins = inside & (x > bests)
            bests, best_columns = tl.where(wins, x, bests), tl.where(wins, column, best_columns)
        top = tl.max(bests, 0)
        tl.store(scores + row * PLACES + part, top)
        tl.store(columns + row * PLACES + part, tl.min(tl.where(bests == top, best_columns, NOBODY), 0))


@triton.jit(do_not_specialize=["parts", "step"])
def _winner(scores, columns, ids, out, step, parts, PLACES: tl.constexpr, MAPPED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    winner = best_part(scores, columns, row, parts, PLACES)
    tl.store(out + row * step, token_of(ids, winner, winner >= 0, MAPPED).to(tl.int64))


def _draw_full(
    logits: Tensor,
    layout: Layout,
    drafts: Tensor,
    state: StaticSamplingState,
    ids: Tensor | None,
    out: Tensor,
    masks: Masks | None,
    scratch: Scratch,
) -> None:
    rows, vocab_size = logits.shape
    parts, chunk = split(rows, vocab_size, scratch.columns.shape[1])
    adjust(logits, layout, drafts, state, ids, masks, scratch, parts, chunk, BLOCK)
    judge(layout, state, scratch, vocab_size, parts, chunk, BLOCK)
    settle(layout, state, ids, out, scratch, vocab_size, parts)


def absorb(table: TokenCounts, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
    """As `StaticSamplingState.absorb`. One program a row."""
    rows, width = tokens.shape
    places = triton.next_power_of_2(MAX_DRAFTS + 1)
    vocab_size = table.output.shape[1]
    _absorb[(rows,)](table.entry, table.output, slots, tokens, counts, vocab_size, width, PLACES=places, num_warps=1)


@triton.jit(do_not_specialize=["width"])
def _absorb(entries, output, slots, tokens, counts, vocab_size, width, PLACES: tl.constexpr):
    row, depth = tl.program_id(0).to(tl.int64), tl.arange(0, PLACES)
    entry = tl.load(entries + tl.load(slots + row))
    new = (depth < tl.load(counts + row)) & (entry >= 0)
    token = tl.load(tokens + row * width + depth, mask=new, other=0)
    tl.atomic_add(output + entry * vocab_size + token, depth * 0 + 1, mask=new, sem="relaxed")
