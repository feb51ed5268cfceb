"""Counts of drafts by position, against rounds counted one by one."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from overdrive.draft_report import DraftTally, engine_report
from overdrive.policy.acceptance import KEYS, DraftCounts
from overdrive.wire import DraftStats, Stats

MOST = 5
SOURCES = ("first", "second")
Round = tuple[int, int, int, int]  # source, key, offered, accepted


def rounds() -> st.SearchStrategy[list[Round]]:
    depth = st.integers(0, MOST).flatmap(lambda offered: st.tuples(st.just(offered), st.integers(0, offered)))
    one = st.tuples(st.integers(0, 1), st.integers(0, len(KEYS) - 1), depth).map(lambda parts: (*parts[:2], *parts[2]))
    return st.lists(one, max_size=30)


def naive(seen: list[Round], counts: Callable[[int, int, int], bool]) -> list[list[list[int]]]:
    """How many rounds `counts(position, offered, accepted)` takes, [sources][keys][positions]."""
    return [
        [[sum(r[:2] == (s, k) and counts(j, *r[2:]) for r in seen) for j in range(MOST)] for k in range(len(KEYS))]
        for s in range(2)
    ]


@given(rounds())
def test_positions_are_counted_as_offered_reached_and_accepted(seen: list[Round]) -> None:
    counts = DraftCounts(SOURCES, MOST)
    for one in seen:
        counts.add(*one)
    assert counts.offered.tolist() == naive(seen, lambda j, offered, accepted: j < offered)
    assert counts.reached.tolist() == naive(seen, lambda j, offered, accepted: j < offered and j <= accepted)
    assert counts.accepted.tolist() == naive(seen, lambda j, offered, accepted: j < accepted)
    assert counts.rounds.tolist() == counts.offered[..., 0].tolist()


@given(rounds())
def test_an_answers_tally_agrees_with_the_engines_counts(seen: list[Round]) -> None:
    """Where no answer was cut, both tell the same of every source."""
    counts, tally = DraftCounts(SOURCES, MOST), DraftTally()
    for source, _, offered, accepted in seen:
        counts.add(source, 0, offered, accepted)
        tally.add(source, offered, accepted, accepted + 1)
    report = DraftTally.report([tally], SOURCES)
    assert report.rounds == len(seen)
    for index, name in enumerate(SOURCES):
        drafted = counts.rounds[index, 0]
        assert (name in report.sources) == (drafted > 0)
        if drafted:
            source = report.sources[name]
            assert source.rounds == drafted
            assert source.offered + [0] * (MOST - len(source.offered)) == counts.offered[index, 0].tolist()
            assert source.accepted + [0] * (MOST - len(source.accepted)) == counts.accepted[index, 0].tolist()


def test_no_drafts_are_no_division_by_zero() -> None:
    assert DraftTally.report([], SOURCES).tokens_per_round == 0
    nothing = DraftStats(source="first", key=KEYS[0], rounds=0, offered=[0], reached=[0], accepted=[0])
    report = engine_report(Stats(drafts=[nothing]))
    assert (report.tokens_per_round, report.sources) == (0, {})
