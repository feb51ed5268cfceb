"""The functions of `steps` and `changes` in Triton: one launch each, for tensors on CUDA.

Imported when the first such tensor arrives; everywhere else Triton need not be installed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.changes import HEAD, Changes
from overdrive.device.cuda.noise_kernels import keyed_hash, position_key
from overdrive.device.cuda.steps import StepRows
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.device.verify import IMPOSED_ID, Imposed
from overdrive.types import MAX_DRAFTS

QUERIES = triton.next_power_of_2(MAX_DRAFTS + 1)
"""Room for the logit rows of one row, whatever the step's K: kernels are compiled once for all shapes of steps."""

PAIRS = 8192
"""Tokens times rows that one program of `flatten` compares, to find the rows of its tokens."""

COPY = 1024
"""Words that a program moves at once."""


def flatten(state: SlotState, rows: StepRows, drafts: Tensor, n_drafts: Tensor, batch: Batch, layout: Layout) -> None:
    """As `steps.flatten`. Programs for blocks of tokens, then one for each row's page table and logits."""
    n_rows, n_tokens, columns = len(rows.slots), len(batch.ids), batch.page_table.shape[1]
    queries = len(batch.wanted) // n_rows
    padded = 16 if n_rows <= 16 else max(256, triton.next_power_of_2(n_rows))
    tokens = max(1, min(64, PAIRS // padded))
    blocks = triton.cdiv(n_tokens, tokens)
    _flatten[(blocks + n_rows,)](
        rows.packed,
        drafts,
        n_drafts,
        state.history,
        state.computed,
        state.page_table,
        batch.ids,
        batch.positions,
        batch.rows,
        batch.offsets,
        batch.page_table,
        batch.writes,
        batch.wanted,
        layout.rows,
        layout.slots,
        layout.depths,
        layout.positions,
        n_rows,
        n_tokens,
        queries,
        columns,
        rows.packed.stride(0),
        drafts.stride(0),
        state.history.shape[1],
        state.page_table.shape[1],
        state.page_size,
        R_PADDED=padded,
        QUERIES=QUERIES,
        TOKENS=tokens,
        COPY=COPY,
    )


@triton.jit(do_not_specialize=["n_rows", "n_tokens", "queries", "columns", "line", "drafts_line"])
def _flatten(
    described,
    drafts,
    n_drafts,
    history,
    computed,
    table,
    ids,
    positions,
    of_row,
    offsets,
    page_table,
    writes,
    wanted,
    layout_rows,
    layout_slots,
    layout_depths,
    layout_positions,
    n_rows,
    n_tokens,
    queries,
    columns,
    line,
    drafts_line,
    history_len,
    table_len,
    page_size,
    R_PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    TOKENS: tl.constexpr,
    COPY: tl.constexpr,
):
    blocks = tl.cdiv(n_tokens, TOKENS)
    program = tl.program_id(0)
    row = tl.arange(0, R_PADDED)
    real = row < n_rows
    known = tl.load(described + line + row, mask=real, other=0)
    cap = tl.minimum(tl.load(described + 2 * line + row, mask=real, other=0), queries - 1)
    fed = tl.maximum(tl.minimum(tl.load(n_drafts + row, mask=real, other=0), cap), 0)
    if program < blocks:
        token = program * TOKENS + tl.arange(0, TOKENS)
        ends = tl.cumsum((known + fed).to(tl.int32), 0)
        ended = (ends[None, :] <= token[:, None]) & real[None, :]  # [TOKENS, R] rows that end at or before the token
        its_row = tl.minimum(tl.sum(ended.to(tl.int32), 1), n_rows - 1)
        within = token - tl.max(tl.where(ended, ends[None, :], 0), 1)
        live = token < tl.sum(known + fed, 0)
        slot = tl.load(described + its_row)
        ahead = within - tl.load(described + line + its_row)
        position = tl.where(live, tl.load(computed + slot) + within, 0)
        known_at = slot * history_len + tl.minimum(position, history_len - 1)
        known_id = tl.load(history + known_at, mask=live & (ahead < 0), other=0).to(tl.int64)
        guess = tl.load(drafts + its_row * drafts_line + ahead, mask=live & (ahead >= 0), other=0)
        column = position // page_size
        page = tl.load(table + slot * table_len + column, mask=live & (column < columns), other=0).to(tl.int64)
        write = tl.where(live, page * page_size + position % page_size, 0)
        tl.store(ids + token, tl.where(ahead >= 0, guess, known_id), mask=token < n_tokens)
        tl.store(positions + token, position, mask=token < n_tokens)
        tl.store(of_row + token, its_row.to(tl.int64), mask=token < n_tokens)
        tl.store(writes + token, write, mask=token < n_tokens)
    else:
        mine = program - blocks
        begin = tl.sum(tl.where(row < mine, known + fed, 0), 0)
        my_known = tl.sum(tl.where(row == mine, known, 0), 0)
        my_fed = tl.sum(tl.where(row == mine, fed, 0), 0)
        my_slot = tl.load(described + mine)
        tl.store(offsets + mine + 1, begin + my_known + my_fed)
        tl.store(offsets, begin, mask=mine == 0)
        depth = tl.arange(0, QUERIES).to(tl.int64)
        at = mine * queries + depth
        exists = (depth <= my_fed) & (tl.load(described + 3 * line + mine) > 0)
        tl.store(wanted + at, tl.where(exists, begin + my_known - 1 + depth, 0), mask=depth < queries)
        tl.store(layout_rows + at, depth * 0 + mine, mask=depth < queries)
        tl.store(layout_slots + at, depth * 0 + my_slot, mask=depth < queries)
        tl.store(layout_depths + at, depth, mask=depth < queries)
        tl.store(layout_positions + at, tl.load(computed + my_slot) + my_known + depth, mask=depth < queries)
        from_line, to_line = table + my_slot * table_len, page_table + mine.to(tl.int64) * columns
        for start in range(0, columns, COPY):
            places = start + tl.arange(0, COPY)
            pages = tl.load(from_line + places, mask=places < columns, other=0)
            tl.store(to_line + places, pages, mask=places < columns)


def accept(
    drawn: Tensor,
    rows: StepRows,
    drafts: Tensor,
    n_drafts: Tensor,
    state: SlotState,
    tokens: Tensor,
    counts: Tensor,
    imposed: Imposed | None = None,
) -> None:
    """As `steps.accept`. One program a row."""
    n_rows, queries = tokens.shape
    _accept[(n_rows,)](
        drawn,
        rows.packed,
        drafts,
        n_drafts,
        state.history,
        state.lengths,
        state.computed,
        tokens,
        counts,
        imposed.rates if imposed is not None else drawn,
        imposed.seeds if imposed is not None else drawn,
        queries,
        rows.packed.stride(0),
        drafts.stride(0),
        state.history.shape[1],
        QUERIES=QUERIES,
        IMPOSED=imposed is not None,
        ID=IMPOSED_ID,
        num_warps=1,
    )


@triton.jit(do_not_specialize=["queries", "line", "drafts_line"])
def _accept(
    drawn,
    described,
    drafts,
    n_drafts,
    history,
    lengths,
    computed,
    tokens,
    counts,
    rates,
    seeds,
    queries,
    line,
    drafts_line,
    history_len,
    QUERIES: tl.constexpr,
    IMPOSED: tl.constexpr,
    ID: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    depth = tl.arange(0, QUERIES)
    slot = tl.load(described + row)
    known = tl.load(described + line + row)
    emits = tl.load(described + 3 * line + row)
    offered = tl.minimum(tl.minimum(tl.load(n_drafts + row), tl.load(described + 2 * line + row)), queries - 1)
    length, stored = tl.load(lengths + slot), tl.load(computed + slot)
    token = tl.load(drawn + row * queries + depth, mask=depth < queries, other=0)
    if IMPOSED:
        a, b = position_key(tl.load(seeds + slot), stored + known + depth)
        level = (keyed_hash(a, b, depth.to(tl.int64) * 0 + ID) >> 8).to(tl.float32) * (1.0 / (1 << 24))
        agreed = level < tl.load(rates + depth, mask=depth < offered, other=0.0)
    else:
        agreed = tl.load(drafts + row * drafts_line + depth, mask=depth < offered, other=-1) == token
    # The first depth at which nothing was accepted is how many were.
    accepted = tl.min(tl.where(agreed & (depth < offered), QUERIES, depth), 0)
    count = tl.where(emits > 0, accepted + 1, 0).to(tl.int64)
    new = depth < count
    tl.store(tokens + row * queries + depth, tl.where(new, token, 0), mask=depth < queries)
    tl.store(counts + row, count)
    place = length + depth
    tl.store(history + slot * history_len + place, token.to(tl.int32), mask=new & (place < history_len))
    # Padding rows share a slot: what they write is what it holds.
    tl.store(lengths + slot, length + count)
    tl.store(computed + slot, stored + known + tl.maximum(count - 1, 0))


def enter(state: SlotState, changes: Changes) -> None:
    """As `changes.enter`. One program a slot, so that nothing depends on an order between programs."""
    _enter[(changes.slots,)](
        changes.data,
        state.history,
        state.lengths,
        state.computed,
        state.page_table,
        state.history.shape[1],
        state.page_table.shape[1],
        HEAD=HEAD,
        COPY=COPY,
    )


@triton.jit
def _enter(data, history, lengths, computed, table, history_len, table_len, HEAD: tl.constexpr, COPY: tl.constexpr):
    head = data + tl.program_id(0) * HEAD
    slot = tl.load(head).to(tl.int64)
    admitted, stored = tl.load(head + 1), tl.load(head + 2)
    n_tokens, tokens_at = tl.load(head + 3), tl.load(head + 4)
    first, n_pages, pages_at = tl.load(head + 5), tl.load(head + 6), tl.load(head + 7)
    begin, end = first, first + n_pages
    if admitted > 0:
        tl.store(lengths + slot, n_tokens.to(tl.int64))
        tl.store(computed + slot, stored.to(tl.int64))
        for start in range(0, n_tokens, COPY):
            index = start + tl.arange(0, COPY)
            token = tl.load(data + tokens_at + index, mask=index < n_tokens, other=0)
            tl.store(history + slot * history_len + index, token, mask=index < n_tokens)
        begin, end = first * 0, first * 0 + table_len
    for start in range(begin, end, COPY):
        column = start + tl.arange(0, COPY)
        within = (column >= first) & (column < first + n_pages)
        page = tl.load(data + pages_at + column - first, mask=within, other=-1)
        written = (column < end) & ((page >= 0) | (admitted > 0))
        tl.store(table + slot * table_len + column, tl.maximum(page, 0), mask=written)
