"""`copies.copy_runs` in Triton: one launch, for tensors on CUDA.

Imported when a drafter opens on CUDA; everywhere else Triton need not be installed.

A program searches one row's text back from its newest token, block by block, until it has seen as many candidates as
are compared; then all of these at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overdrive.device.state import SlotState
from overdrive.draft.ngram import MAX_CANDIDATES, MAX_MATCH
from overdrive.draft.padded import DescribedRows, PaddedDrafts

BLOCK = 2048
"""Positions of the text that a program looks at at once."""


def copy_runs(
    state: SlotState, rows: DescribedRows, drafts: PaddedDrafts, shortest: int, others: int, block: int = BLOCK
) -> None:
    """As `copies.copy_runs`."""
    n_rows, width = drafts.tokens.shape
    _copy_runs[(n_rows,)](
        state.history,
        state.lengths,
        rows.slots,
        rows.drafts,
        drafts.tokens,
        drafts.counts,
        drafts.sources,
        state.history.shape[1],
        drafts.tokens.stride(0),
        drafts.tokens.stride(1),
        width,
        OTHERS=others > 0,
        SHORTEST=shortest,
        REACH=MAX_MATCH,
        MOST=MAX_CANDIDATES,
        BLOCK=block,
        DEPTHS=triton.next_power_of_2(width),
        num_warps=8,
    )


@triton.jit(
    do_not_specialize=["token_stride", "width"],
    do_not_specialize_on_alignment=["lengths", "slots", "caps", "tokens", "counts", "sources"],
)
def _copy_runs(
    history, lengths, slots, caps, tokens, counts, sources, history_stride, token_stride, depth_stride, width,
    OTHERS: tl.constexpr, SHORTEST: tl.constexpr, REACH: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr,
    DEPTHS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot, cap = tl.load(slots + row), tl.load(caps + row)
    newest = (tl.load(lengths + slot) - 1).to(tl.int32)
    text = history + slot * history_stride
    number = tl.arange(0, MOST)
    ends, seen = _latest_ends(text, newest, cap, number, SHORTEST, BLOCK, MOST)
    found, end = _best_end(text, newest, ends, number < seen, REACH)
    depth = tl.arange(0, DEPTHS)
    copied = tl.load(text + end + 1 + depth % tl.maximum(newest - end, 1), mask=found & (depth < width), other=0)
    tl.store(tokens + row * token_stride + depth * depth_stride, copied.to(tl.int64), mask=found & (depth < width))
    if found:
        tl.store(counts + row, tl.minimum(cap, width))
        tl.store(sources + row, cap * 0)
    else:
        if OTHERS:
            tl.store(sources + row, tl.load(sources + row) + 1)
        else:
            tl.store(counts + row, cap * 0)
            tl.store(sources + row, cap * 0)


@triton.jit
def _latest_ends(
    text, newest, cap, number, SHORTEST: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr
):  # fmt: skip
    """Where the latest MOST earlier runs end that are equal to the newest SHORTEST tokens, [MOST], and how many."""
    ends = number * 0
    seen = newest * 0
    top = tl.where(cap > 0, newest, 0)  # ends before this one are still to be seen
    while (top >= SHORTEST) & (seen < MOST):
        end = top - BLOCK + tl.arange(0, BLOCK)
        whole = end >= SHORTEST - 1
        same = whole
        for back in tl.static_range(SHORTEST):
            token = tl.load(text + newest - back)
            same = same & (tl.load(text + end - back, mask=whole, other=-1) == token)
        hits = same.to(tl.int32)
        count = tl.sum(hits, 0)
        if count > 0:
            rank = seen + count - tl.cumsum(hits, 0)  # 0 for the latest
            chosen = same[None, :] & (rank[None, :] == number[:, None])
            ends += tl.sum(tl.where(chosen, end[None, :], 0), 1)
        seen += count
        top -= BLOCK
    return ends, tl.minimum(seen, MOST)


@triton.jit
def _best_end(text, newest, ends, exists, REACH: tl.constexpr):
    """Whether one of the ends exists, and which has the longest match; the latest of equals."""
    back = tl.arange(0, REACH)
    near = ends[:, None] - back[None, :]
    before = tl.load(text + near, mask=exists[:, None] & (near >= 0), other=-1)
    tail = tl.load(text + newest - back, mask=newest >= back, other=-2)
    differing = (before != tail[None, :]).to(tl.int32)
    matched = tl.sum((tl.cumsum(differing, 1) == 0).to(tl.int32), 1)
    score = tl.where(exists, (matched.to(tl.int64) << 32) + ends, -1)
    best = tl.max(score, 0)
    return best >= 0, tl.where(best >= 0, best & 0xFFFFFFFF, 0).to(tl.int32)
