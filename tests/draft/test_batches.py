"""Stretches of text in passes: nothing is left out, read twice or out of order, and every token is at its place."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.device.batch import flatten
from overdrive.device.state import SlotState
from overdrive.draft.batches import known_tokens, one_each, passes
from overdrive.types import Admission, PageEntry, SamplingParams


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 20))
def test_passes_take_every_token_once_in_order(lags: list[int], most: int) -> None:
    taken = [(row, int(count)) for rows, counts in passes(np.array(lags, np.int64), most)
             for row, count in zip(rows.tolist(), counts, strict=True)]  # fmt: skip
    sizes = [int(counts.sum()) for _, counts in passes(np.array(lags, np.int64), most)]
    assert [row for row, count in taken for _ in range(count)] == [r for r, lag in enumerate(lags) for _ in range(lag)]
    assert all(count > 0 for _, count in taken)
    assert all(size == most for size in sizes[:-1])
    assert all(size <= most for size in sizes)


def slots() -> SlotState:
    state = SlotState(3, 40, 4)
    for slot in range(3):
        tokens = tuple(range(100 * slot, 100 * slot + 20))
        state.admit(Admission("r", slot, tokens, 20, 0, SamplingParams(max_tokens=1)))
        state.enter(PageEntry(slot, 0, tuple(range(10 * slot + 1, 10 * slot + 8))))
    return state


def test_known_tokens_are_the_targets_batch_of_the_same_rows() -> None:
    """Against `flatten`, which feeds from `computed` on."""
    state, numbers = slots(), np.array([2, 0])
    begins, counts = np.array([3, 9]), np.array([6, 1])
    batch = known_tokens(state, numbers, begins, counts, 0, np.zeros((2, 2), np.int64))
    chosen = torch.from_numpy(numbers)
    state.computed[chosen] = torch.from_numpy(begins)
    nothing = torch.zeros(2, dtype=torch.int64)
    emits = torch.ones(2, dtype=torch.bool)
    expected, _ = flatten(state, chosen, torch.from_numpy(counts), emits, nothing.view(2, 1), nothing, 10)
    for name in batch.__slots__:
        assert getattr(batch, name).tolist() == getattr(expected, name).tolist(), name


def test_one_each_is_a_batch_of_single_tokens() -> None:
    state, places = slots(), torch.tensor([7, 12])
    gaps = np.array([[1, 2], [2, 5], [0, 0]])
    batch = one_each(state, torch.tensor([1, 2]), torch.tensor([5, 6]), places, 1, gaps)
    assert batch.ids.tolist() == [5, 6]
    assert batch.positions.tolist() == [7, 12]
    assert batch.offsets.tolist() == [0, 1, 2]
    assert batch.starts.tolist() == [1, 1]
    assert batch.gaps.tolist() == [[2, 5], [0, 0]]
    assert batch.writes.tolist() == [12 * 4 + 3, 24 * 4]
    assert batch.page_table.tolist() == [[11, 12, 13, 14], [21, 22, 23, 24]]
