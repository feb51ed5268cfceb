"""Batches of a network that reads text on its own: a stretch of each slot's known tokens, or one drafted token per row.

Knows where tokens and pages of a slot stand. Token t of a slot is read at place t of its page table; whether that is
also its rotary position is the network's business. CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.state import SlotState

Ints = NDArray[np.int64]


def passes(lags: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Cut rows that lack `lags` [R] tokens into passes of at most `most` tokens: (rows, tokens of each) of every pass.

    Rows come in order and a row's tokens too, so the passes in which rows end name them in ascending order.

        lags 3 5 2, most 4:      | 0 0 0 1 | 1 1 1 1 | 2 2 |
    """
    ends = np.cumsum(lags)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, most):
        taken = np.minimum(ends, begin + most) - np.maximum(ends - lags, begin)
        rows = np.flatnonzero(taken > 0)
        yield rows, taken[rows]


def known_tokens(state: SlotState, slots: Ints, begins: Ints, counts: Ints, first: int, gaps: Ints) -> Batch:
    """Tokens `begins[r] .. begins[r] + counts[r] - 1` of `slots[r]`; the last of each row is wanted.

    All [R], counts at least 1. first: the lowest place that a row sees. gaps: [R, 2], as `Batch.gaps`.
    """
    total, table = int(counts.sum()), state.page_table.numpy()
    ids, places, rows, writes = np.empty((4, total), np.int64)
    offsets = np.zeros(len(slots) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    _gather(state.history.numpy(), table, slots, begins, offsets, state.page_size, ids, places, rows, writes)
    width = (int((begins + counts).max(initial=1)) - 1) // state.page_size + 1
    return Batch(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(places),
        rows=torch.from_numpy(rows),
        offsets=torch.from_numpy(offsets),
        page_table=torch.from_numpy(table[slots, :width]),
        starts=torch.from_numpy(np.full(len(slots), first)),
        gaps=torch.from_numpy(gaps),
        writes=torch.from_numpy(writes),
        wanted=torch.from_numpy(offsets[1:] - 1),
    )


def one_each(state: SlotState, slots: Tensor, ids: Tensor, places: Tensor, first: int, gaps: Ints) -> Batch:
    """Token `ids[r]` at place `places[r]` of `slots[r]`; all [R] int64.

    first: the lowest place that a row sees. gaps: [slots, 2], as `Batch.gaps`.
    """
    count, table, places_ = len(slots), state.page_table.numpy(), places.numpy()
    rows = np.arange(count + 1)
    of_rows, writes = np.empty((count, 2), np.int64), np.empty(count, np.int64)
    pages = np.empty((count, int(places_.max()) // state.page_size + 1), np.int32)
    _place(table, slots.numpy(), places_, gaps, state.page_size, writes, of_rows, pages)
    known = torch.from_numpy(rows[:-1])
    return Batch(
        ids=ids,
        positions=places,
        rows=known,
        offsets=torch.from_numpy(rows),
        page_table=torch.from_numpy(pages),
        starts=torch.from_numpy(np.full(count, first)),
        gaps=torch.from_numpy(of_rows),
        writes=torch.from_numpy(writes),
        wanted=known,
    )


@numba.njit(cache=True, nogil=True)
def _place(table, slots, places, gaps, size, writes, of_rows, pages):
    for row in range(len(slots)):
        slot, place = slots[row], places[row]
        writes[row] = np.int64(table[slot, place // size]) * size + place % size
        of_rows[row, 0], of_rows[row, 1] = gaps[slot, 0], gaps[slot, 1]
        for column in range(pages.shape[1]):
            pages[row, column] = table[slot, column]


@numba.njit(cache=True, nogil=True)
def _gather(history, table, slots, begins, offsets, size, ids, places, rows, writes):
    for row in range(len(slots)):
        slot = slots[row]
        for token in range(offsets[row], offsets[row + 1]):
            place = begins[row] + token - offsets[row]
            ids[token] = history[slot, place]
            places[token] = place
            rows[token] = row
            writes[token] = table[slot, place // size] * size + place % size
