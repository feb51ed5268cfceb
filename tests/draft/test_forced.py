"""Runs that grammars make certain: which one holds, and what it does to others' drafts."""

from __future__ import annotations

import torch

from overdrive.draft.forced import RUNS, ForcedRuns, with_grammar

NONE = -1


def kept(runs: list[list[int]], tokens: list[int], count: int, longest: int = 4) -> list[int]:
    """What follows in slot 1 after a step of one row, of Q = 2, whose last position has these runs."""
    forced = ForcedRuns(3, longest)
    table = torch.full((1, 2, *forced.shape), NONE)
    for number, run in enumerate(runs):
        table[0, count - 1 if count else 0, number, : len(run)] = torch.tensor(run)
    forced.keep(torch.tensor([1]), table, torch.tensor([tokens]), torch.tensor([count]))
    return [token for token in forced.following[1].tolist() if token != NONE]


def test_the_run_that_begins_with_the_newest_token_holds() -> None:
    assert kept([[7, 1, 2]], [7, 0], 1) == [1, 2]
    assert kept([[8, 3], [7, 1, 2]], [5, 7], 2) == [1, 2]
    assert kept([[8, 1, 2]], [7, 0], 1) == []
    assert kept([[0, 1, 2]], [0, 0], 0) == []  # the row yielded nothing


def written(following: list[int], drafts: list[int], count: int, cap: int = 4) -> tuple[list[int], int, int]:
    """Drafts, their number and source once a run was written over those of source 0."""
    forced = ForcedRuns(2, 4)
    forced.set(1, following)
    tokens = torch.tensor([[*drafts, *[0] * (4 - len(drafts))]])
    counts, sources = torch.tensor([count]), torch.tensor([0])
    forced.write_over(torch.tensor([1]), torch.tensor([cap]), tokens, counts, sources, source=1)
    number = int(counts[0])
    return tokens[0, :number].tolist(), number, int(sources[0])


def test_what_is_certain_replaces_what_says_otherwise() -> None:
    assert written([5, 6], [9, 9, 9], 3) == ([5, 6], 2, 1)
    assert written([5, 6], [5], 1) == ([5, 6], 2, 1)
    assert written([5, 6, 7, 8], [], 0, cap=3) == ([5, 6, 7], 3, 1)


def test_drafts_that_say_the_same_and_more_are_left_alone() -> None:
    assert written([5, 6], [5, 6, 9], 3) == ([5, 6, 9], 3, 0)
    assert written([], [9, 8], 2) == ([9, 8], 2, 0)
    assert written([5], [9, 8], 0, cap=0) == ([], 0, 0)


def test_a_slot_given_to_another_has_no_runs() -> None:
    forced = ForcedRuns(2, 4)
    forced.set(1, [5, 6, 7, 8, 9])
    assert forced.following[1].tolist() == [5, 6, 7, 8]
    forced.forget(torch.tensor([1]))
    assert (forced.following == NONE).all()


def test_where_nobody_drafts_nothing_is_kept() -> None:
    assert ForcedRuns(2, 0).shape == (0, 0)
    assert ForcedRuns(2, 3).shape == (RUNS, 4)
    assert with_grammar(("none",)) == ("none",)
    assert with_grammar(("ngram", "eagle3")) == ("ngram", "eagle3", "grammar")
