"""Copies in static shapes are those of the n-gram drafter on the CPU, alone and over a network's drafts."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.device.cuda.steps import StepRows
from overdrive.device.state import SlotState
from overdrive.draft.composite import PaddedComposite
from overdrive.draft.copies import PaddedNgramDrafter, copy_runs
from overdrive.draft.ngram import MAX_CANDIDATES, MAX_MATCH, NgramDrafter
from overdrive.draft.padded import DescribedRows, KeepsNothing, PaddedDrafts

MAX_MODEL_LEN = 200


def state_of(texts: list[list[int]]) -> SlotState:
    """Each text in a slot, one slot more for padding; behind a text stands what an earlier one left."""
    state = SlotState(len(texts) + 1, MAX_MODEL_LEN, 4)
    state.history[:-1] = torch.arange(state.history.shape[1]) % 5
    for slot, text in enumerate(texts):
        state.history[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
        state.lengths[slot] = len(text)
    return state


def rows_of(slots: list[int], caps: list[int], padding: int, spare: int) -> StepRows:
    ones = [1] * len(slots)
    lines = zip((slots, ones, caps, ones), (spare, 0, 0, 0), strict=True)
    return StepRows(torch.tensor([line + [value] * padding for line, value in lines]))


def garbage(rows: StepRows, width: int) -> PaddedDrafts:
    count = len(rows.slots)
    return PaddedDrafts(torch.full((count, width), 77), torch.full((count,), -5), torch.full((count,), 9))


def check_equal(state: SlotState, slots: list[int], caps: list[int], width: int, shortest: int) -> int:
    """Compare with the CPU's drafter; how many rows have drafts."""
    expected = NgramDrafter(state.history, state.lengths, shortest).propose(
        torch.tensor(slots), torch.tensor(caps), width
    )
    rows = rows_of(slots, caps, 2, len(state.lengths) - 1)
    drafts = garbage(rows, width)
    copy_runs(state, rows, drafts, shortest, 0)
    real = len(slots)
    assert drafts.counts.tolist() == [*expected.counts.tolist(), 0, 0]
    assert not drafts.sources.any()
    offered = torch.arange(width) < expected.counts.unsqueeze(1)
    assert torch.equal(drafts.tokens[:real] * offered, expected.tokens)
    return int((expected.counts > 0).sum())


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 6))
def test_padded_copies_are_those_of_the_index(data: st.DataObject, shortest: int, alphabet: int) -> None:
    tokens = st.integers(0, alphabet).map(lambda t: t * 8191)
    texts = data.draw(st.lists(st.lists(tokens, max_size=120), min_size=3, max_size=3))
    caps = data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3))
    check_equal(state_of(texts), [2, 0, 1], caps, 5, shortest)


def test_long_texts_with_many_candidates_and_long_matches_are_copied_alike() -> None:
    rng, drafted = random.Random(0), 0
    for length in (MAX_MATCH, 150, MAX_MODEL_LEN):
        period = [rng.randrange(3) for _ in range(rng.choice([1, 2, 40]))]
        repeating = (period * length)[:length]
        often = [rng.randrange(2) for _ in range(length)]
        often[-1 - MAX_CANDIDATES :] = [1] * (1 + MAX_CANDIDATES)
        drafted += check_equal(state_of([repeating, often, [7] * length]), [0, 1, 2], [7, 3, 1], 7, 2)
    assert drafted > 6


class Fake(KeepsNothing):
    """Offers `token` as often as asked, as two sources in turn."""

    sources = ("even", "odd")

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        drafts.tokens.fill_(60)
        drafts.counts.copy_(rows.drafts)
        drafts.sources.copy_(rows.slots % 2)


def test_copies_are_written_over_the_networks_drafts_row_by_row() -> None:
    state = state_of([[1, 2, 3, 1, 2, 3, 1], [5, 6, 7, 8], [4, 4, 4, 4, 4], [9, 8, 7]])
    both = PaddedComposite(PaddedNgramDrafter(state, 3), Fake())
    rows = rows_of([3, 0, 1, 2], [2, 3, 1, 0], 1, 4)
    drafts = garbage(rows, 3)
    both.propose(rows, drafts, 1)
    assert drafts.counts.tolist() == [2, 3, 1, 0, 0]
    offered = [row[:count] for row, count in zip(drafts.tokens.tolist(), drafts.counts.tolist(), strict=True)]
    assert offered == [[60, 60], [2, 3, 1], [60], [], []]
    assert [both.sources[source] for source in drafts.sources.tolist()[:3]] == ["odd", "ngram", "odd"]
