"""The recorded functions of `steps` in Triton: one launch each, for tensors on CUDA.

Imported when a drafter opens on CUDA; everywhere else Triton need not be installed. Slices of tensors begin anywhere:
no kernel is compiled anew for how its integers are aligned.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.state import SlotState
from overdrive.draft.eagle3.slots import FIRST, HeadSlots
from overdrive.draft.eagle3.steps import Pairs, Wanted
from overdrive.draft.padded import DescribedRows, PaddedDrafts

FEW = 64
"""Tokens up to which a program moves a small part of a token's taps, so that there are enough programs."""

MANY = 256
"""Rows that passes are compiled for which are not recorded: one binary serves all of them. Else the first prompts that
come two, four, .. at once would each wait a quarter of a second for theirs."""

_SLOTS = ["slots", "most", "computed", "stops", "oldest", "gaps", "fed_rows", "fed_offsets", "fed_positions"]


def _part(tokens: int, width: int) -> int:
    """Values of a token's taps that one program moves."""
    return min(1024 if tokens <= FEW else 4096, triton.next_power_of_2(max(width, 16)))


def plan_pairs(state: SlotState, head: HeadSlots, wanted: Wanted, firsts: Tensor) -> Pairs:
    """As `steps.plan_pairs`. Programs for each token's part of taps, then for each row's page table."""
    n_rows, tokens, width = len(wanted.slots), wanted.tokens, head.ring.shape[2]
    columns, device = state.page_table.shape[1], wanted.slots.device
    integers = torch.empty(4 * tokens + 5 * n_rows + 1, dtype=torch.int64, device=device)
    by_token, by_row = integers[: 4 * tokens].view(4, tokens), integers[4 * tokens :]
    offsets, last, next_positions, gaps = by_row.split_with_sizes((n_rows + 1, n_rows, n_rows, 2 * n_rows))
    ids, positions, of_row, writes = by_token
    table = torch.empty((n_rows, columns), dtype=torch.int32, device=device)
    taps = torch.empty((tokens, width), dtype=head.ring.dtype, device=device)
    part = _part(tokens, width)
    parts = triton.cdiv(max(width, 1), part)
    fed_taps = wanted.fed.taps if wanted.fed else taps
    _plan_pairs[(tokens + n_rows, parts)](
        wanted.slots,
        wanted.most,
        state.computed,
        state.lengths,
        head.stops,
        head.oldest,
        head.gaps,
        *_fed(wanted),
        fed_taps,
        fed_taps.stride(0),
        state.history,
        state.page_table,
        head.ring,
        head.before,
        by_token,
        by_row,
        table,
        taps,
        n_rows,
        tokens,
        wanted.width,
        head.window,
        state.history.shape[1],
        columns,
        NEWEST=wanted.newest,
        FED=wanted.fed is not None,
        SIZE=state.page_size,
        WIDTH=width,
        PART=part,
        PARTS=parts,
        ROWS=triton.next_power_of_2(n_rows if wanted.newest else max(n_rows, MANY)),
        num_warps=4 if part <= 1024 else 8,
    )
    batch = Batch(ids, positions, of_row, offsets, table, firsts[:n_rows], gaps.view(n_rows, 2), writes, last)
    return Pairs(batch, taps, next_positions)


def _fed(wanted: Wanted) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, offsets and positions of the step behind a pass; any tensors where there is none."""
    if wanted.fed is None:
        return wanted.slots, wanted.slots, wanted.slots
    return wanted.fed.rows, wanted.fed.batch.offsets, wanted.fed.batch.positions


def note_pairs(state: SlotState, head: HeadSlots, wanted: Wanted, offers: PaddedDrafts | None = None) -> None:
    """As `steps.note_pairs`: a program for each row."""
    _note_pairs[(len(wanted.slots),)](
        wanted.slots,
        wanted.most,
        state.computed,
        head.stops,
        head.oldest,
        head.gaps,
        *_fed(wanted),
        state.page_table,
        head.marks,
        offers.counts if offers else wanted.most,
        offers.sources if offers else wanted.most,
        wanted.width,
        head.window,
        state.page_table.shape[1],
        NEWEST=wanted.newest,
        FED=wanted.fed is not None,
        SIZE=state.page_size,
        ONE_LAYER=head.one_layer,
        OFFERED=offers is not None,
        num_warps=1,
    )


def plan_drafts(
    state: SlotState, rows: DescribedRows, drafts: PaddedDrafts, depth: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `steps.plan_drafts`."""
    n_rows = len(rows.slots)
    out = torch.empty((4, n_rows), dtype=torch.int64, device=rows.slots.device)
    block = min(128, triton.next_power_of_2(n_rows))
    _plan_drafts[(triton.cdiv(n_rows, block),)](
        rows.slots,
        rows.drafts,
        drafts.tokens,
        state.lengths,
        state.page_table,
        out,
        n_rows,
        depth,
        drafts.tokens.stride(0),
        drafts.tokens.stride(1),
        state.history.shape[1],
        state.page_table.shape[1],
        SIZE=state.page_size,
        PLACE=FIRST,
        BLOCK=block,
        num_warps=1,
    )
    ids, places, writes, next_positions = out
    return ids, places, writes, next_positions


def keep(state: SlotState, head: HeadSlots, rows: DescribedRows, batch: Batch, taps: Tensor, counts: Tensor) -> None:
    """As `steps.keep`: programs for each token's part of taps."""
    tokens, width = len(batch.ids), head.ring.shape[2]
    part = _part(tokens, width)
    _keep[(tokens, triton.cdiv(max(width, 1), part))](
        rows.slots,
        rows.known,
        counts,
        batch.offsets,
        batch.rows,
        batch.positions,
        batch.writes,
        taps,
        head.ring,
        head.before,
        head.page_taps,
        head.marks,
        len(rows.slots),
        taps.stride(0),
        head.window,
        SIZE=state.page_size,
        WIDTH=width,
        PART=part,
        num_warps=4 if part <= 1024 else 8,
    )


@triton.jit
def _extent(
    row, live, slots, most, computed, stops, oldest, gaps, fed_rows, fed_offsets, fed_positions, width, window,
    NEWEST: tl.constexpr, FED: tl.constexpr,
):  # fmt: skip
    """`steps.extent` of rows, any shape: slots, begins, counts, both ends of gaps; the step's first token and position
    of each row, 0 where there is no step."""
    slot = tl.load(slots + row, mask=live, other=0)
    goal = tl.load(computed + slot, mask=live, other=0)
    stop = tl.load(stops + slot, mask=live, other=0)
    asked = tl.load(most + row, mask=live, other=0)
    gap = tl.load(gaps + 2 * slot, mask=live, other=0)
    gap_end = tl.load(gaps + 2 * slot + 1, mask=live, other=0)
    first, since, kept = slot * 0, slot * 0, goal - window
    if FED:
        first = tl.load(fed_offsets + tl.load(fed_rows + row, mask=live, other=0), mask=live, other=0)
        since = tl.load(fed_positions + first, mask=live, other=0)
        kept = tl.minimum(kept, since - 1)
    kept = tl.maximum(tl.load(oldest + slot, mask=live, other=0), kept) + 1
    lost = stop < kept
    gap = tl.where(lost & (gap_end == 0), stop, gap)
    gap_end = tl.where(lost, kept, gap_end)
    begin = tl.maximum(stop, kept)
    if NEWEST:
        asked = tl.where(asked > 0, asked * 0 + width, 0)
        goal += 1
    return slot, begin, tl.minimum(tl.maximum(goal - begin, 0), asked), gap, gap_end, first, since


@triton.jit(
    do_not_specialize=["n_rows", "n_tokens", "width"],
    do_not_specialize_on_alignment=[*_SLOTS, "lengths", "by_token", "by_row"],
)
def _plan_pairs(
    slots, most, computed, lengths, stops, oldest, gaps, fed_rows, fed_offsets, fed_positions, fed_taps, fed_stride,
    history, page_table, ring, before, by_token, by_row, table, taps,
    n_rows, n_tokens, width, window, history_stride, columns, NEWEST: tl.constexpr, FED: tl.constexpr,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """by_token: [4, T] ids, positions, rows, writes. by_row: offsets [R + 1], last pairs, next positions, gaps."""
    token, part = tl.program_id(0), tl.program_id(1)
    if token >= n_tokens:
        row = token - n_tokens
        slot = tl.load(slots + row)
        for start in tl.range(part * PART, columns, PARTS * PART):
            column = start + tl.arange(0, PART)
            pages = tl.load(page_table + slot * columns + column, mask=column < columns)
            tl.store(table + row * columns + column, pages, mask=column < columns)
        return
    rows = tl.arange(0, ROWS)
    live = rows < n_rows
    slot, begin, count, gap, gap_end, first, since = _extent(
        rows, live, slots, most, computed, stops, oldest, gaps, fed_rows, fed_offsets, fed_positions, width, window,
        NEWEST, FED,
    )  # fmt: skip
    ends = tl.cumsum(count, 0)
    row = tl.minimum(tl.sum((live & (ends <= token)).to(tl.int32), 0), n_rows - 1)
    mine = rows == row
    mine_slot = tl.sum(tl.where(mine, slot, 0), 0)
    place = tl.sum(tl.where(mine, begin - ends + count, 0), 0) + token
    stands = token < tl.sum(count, 0)
    if part == 0:
        page = tl.load(page_table + mine_slot * columns + place // SIZE, mask=stands, other=0).to(tl.int64)
        known = tl.load(history + mine_slot * history_stride + place, mask=stands, other=0).to(tl.int64)
        tl.store(by_token + token, known)
        tl.store(by_token + n_tokens + token, tl.where(stands, place, 0))
        tl.store(by_token + 2 * n_tokens + token, row.to(tl.int64))
        tl.store(by_token + 3 * n_tokens + token, tl.where(stands, page * SIZE + place % SIZE, 0))
        if token == 0:
            tl.store(by_row, place * 0)
            tl.store(by_row + 1 + rows, ends, mask=live)
            tl.store(by_row + 1 + n_rows + rows, tl.maximum(ends - 1, 0), mask=live)
            newest = tl.load(lengths + slot, mask=live, other=0)
            tl.store(by_row + 1 + 2 * n_rows + rows, newest, mask=live)
            tl.store(by_row + 1 + 3 * n_rows + 2 * rows, gap, mask=live)
            tl.store(by_row + 1 + 3 * n_rows + 2 * rows + 1, gap_end, mask=live)
    column = part * PART + tl.arange(0, PART)
    if stands:
        source = ring + (mine_slot * window + (place - 1) % window) * WIDTH
        if FED:
            ahead = place - 1 - tl.sum(tl.where(mine, since, 0), 0)
            filled = tl.load(computed + mine_slot) - place + 1 + ahead >= window
            own = fed_taps + (tl.sum(tl.where(mine, first, 0), 0) + ahead) * fed_stride
            source = tl.where((ahead == -1) & filled, before + mine_slot * WIDTH, tl.where(ahead >= 0, own, source))
        values = tl.load(source + column, mask=column < WIDTH)
        tl.store(taps + token.to(tl.int64) * WIDTH + column, values, mask=column < WIDTH)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=[*_SLOTS, "counts", "sources"])
def _note_pairs(
    slots, most, computed, stops, oldest, gaps, fed_rows, fed_offsets, fed_positions, page_table, marks,
    counts, sources, width, window, columns, NEWEST: tl.constexpr, FED: tl.constexpr, SIZE: tl.constexpr,
    ONE_LAYER: tl.constexpr, OFFERED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot, begin, count, gap, gap_end, _, _ = _extent(
        row, row >= 0, slots, most, computed, stops, oldest, gaps, fed_rows, fed_offsets, fed_positions, width, window,
        NEWEST, FED,
    )  # fmt: skip
    if OFFERED:
        tl.store(counts + row, tl.load(most + row))
        tl.store(sources + row, slot * 0)
    if count > 0:
        stop = begin + count
        tl.store(stops + slot, stop)
        tl.store(gaps + 2 * slot, gap)
        tl.store(gaps + 2 * slot + 1, gap_end)
        if ONE_LAYER or gap_end == 0:
            whole = tl.maximum((gap_end + SIZE - 1) // SIZE, begin // SIZE)
            for column in tl.range(whole, stop // SIZE):
                page = tl.load(page_table + slot * columns + column)
                tl.store(marks + page, tl.full((), 1, tl.uint8))


@triton.jit(
    do_not_specialize=["n_rows", "depth", "token_stride"],
    do_not_specialize_on_alignment=["slots", "caps", "tokens", "lengths"],
)
def _plan_drafts(
    slots, caps, tokens, lengths, page_table, out, n_rows, depth, token_stride, depth_stride, end, columns,
    SIZE: tl.constexpr, PLACE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out: [4, R] ids, places, writes, next positions. end: positions of the history."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < n_rows
    slot = tl.load(slots + row, mask=live, other=0)
    position = tl.load(lengths + slot, mask=live, other=0) - 1 + depth
    going = tl.load(caps + row, mask=live, other=0) > depth
    place = tl.where(going, tl.minimum(position, end - 1), PLACE)
    ids = tl.load(tokens + row * token_stride + (depth - 1) * depth_stride, mask=going, other=0)
    page = tl.load(page_table + slot * columns + place // SIZE, mask=going, other=0).to(tl.int64)
    tl.store(out + row, ids, mask=live)
    tl.store(out + n_rows + row, place, mask=live)
    tl.store(out + 2 * n_rows + row, tl.where(going, page * SIZE + place % SIZE, 0), mask=live)
    tl.store(out + 3 * n_rows + row, position + 1, mask=live)


@triton.jit(
    do_not_specialize=["n_rows"],
    do_not_specialize_on_alignment=["slots", "known", "counts", "offsets", "of_row", "positions", "writes"],
)
def _keep(
    slots, known, counts, offsets, of_row, positions, writes, taps, ring, before, page_taps, marks,
    n_rows, taps_stride, window, SIZE: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    token, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(of_row + token)
    stand = tl.load(known + row) + tl.maximum(tl.load(counts + row) - 1, 0)
    within = token - tl.load(offsets + row)
    if (token < tl.load(offsets + n_rows)) & (within < stand):
        position, page = tl.load(positions + token), tl.load(writes + token) // SIZE
        at = position % SIZE
        column = part * PART + tl.arange(0, PART)
        values = tl.load(taps + token.to(tl.int64) * taps_stride + column, mask=column < WIDTH)
        if within >= stand - window:
            slot = tl.load(slots + row)
            to = ring + (slot * window + position % window) * WIDTH
            if (stand >= window) & ((within + 1) % window == 0):
                lost = tl.load(to + column, mask=column < WIDTH)
                tl.store(before + slot * WIDTH + column, lost, mask=column < WIDTH)
            tl.store(to + column, values, mask=column < WIDTH)
        if at == SIZE - 1:
            tl.store(page_taps + page * WIDTH + column, values, mask=column < WIDTH)
        if (at == 0) & (part == 0):
            tl.store(marks + page, tl.full((), 0, tl.uint8))
