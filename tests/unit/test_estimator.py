"""What acceptance is estimated to be, from rounds drawn with a known one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.policy.estimator import PRIOR, AcceptanceEstimator

MOST = 5


class Rounds:
    """Feeds an estimator steps of rows whose drafts are right with given chances, each behind accepted ones."""

    def __init__(self, estimator: AcceptanceEstimator, seed: int = 0) -> None:
        self.estimator = estimator
        self._rng = np.random.default_rng(seed)

    def steps(self, count: int, rates: list[float], asked: int, slots: tuple[int, ...] = (0,), source: int = 0) -> None:
        at = np.array(slots)
        for _ in range(count):
            right = self._rng.random((len(slots), asked)) < rates[:asked]
            self.estimator.observe(at, at * 0 + source, at * 0 + asked, right.cumprod(axis=1).sum(axis=1))

    def survival_of_strangers(self, sampled: bool = False) -> np.ndarray:
        """Of requests that nothing sets apart: the next step belongs to one without drafts so far."""
        self.estimator.admit(99, sampled)
        self.estimator.observe(np.array([99]), np.array([0]), np.array([0]), np.array([0]))
        return self.estimator.survival(int(sampled), int(not sampled))


def estimator(*sources: str) -> AcceptanceEstimator:
    return AcceptanceEstimator(sources or ("drafter",), MOST)


@st.composite
def steps(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    """slots, sources, asked, accepted of some rows."""
    slots = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    asked = rng.integers(0, MOST + 1, len(slots))
    return np.array(slots), rng.integers(0, 2, len(slots)), asked, rng.integers(0, asked + 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps(), max_size=12), st.sets(st.integers(0, 9)), st.integers(0, 4), st.integers(1, 4))
def test_survival_is_a_share_that_never_rises(seen, sampled: set[int], sampled_rows: int, greedy_rows: int) -> None:
    e = estimator("first", "second")
    for slot in sampled:
        e.admit(slot, True)
    for step in seen:
        e.observe(*step)
        survival = e.survival(sampled_rows, greedy_rows)
        assert (survival > 0).all() and (survival < 1).all()
        assert (np.diff(survival) <= 0).all()


@pytest.mark.parametrize("share", [0, 1])
def test_however_long_all_drafts_were_right_or_wrong_a_change_is_seen(share: int) -> None:
    """No number of drafts makes a certainty: its odds would be infinite, and what follows from them no number."""
    e, slots = estimator(), np.zeros(100, np.int64)
    for right in (share, 1 - share, share):
        for _ in range(600):
            e.observe(slots, slots, slots + MOST, slots + MOST * right)
        survival = e.survival(0, 1)
        assert (survival > 0).all() and (survival < 1).all()
        assert (survival[0] > 0.9) == bool(right)


def test_what_was_seen_comes_back_and_is_calibrated() -> None:
    rates = [0.8, 0.6, 0.9, 0.3, 0.5]
    rounds = Rounds(estimator())
    for _ in range(400):
        rounds.steps(1, rates, MOST, slots=tuple(range(32)))
        rounds.estimator.survival(0, 32)
    assert rounds.survival_of_strangers() == pytest.approx(np.cumprod(rates), abs=0.05)
    assert rounds.estimator.calibration == pytest.approx(np.zeros(MOST), abs=0.04)


def test_a_position_that_was_not_reached_is_missing_and_not_refused() -> None:
    """Beyond what was asked for it stays as it was believed to be."""
    for asked in (1, 2):
        rounds = Rounds(estimator())
        rounds.steps(3000, [0.6] * MOST, asked)
        survival = rounds.survival_of_strangers()
        assert survival[0] == pytest.approx(0.6, abs=0.07)
        assert survival[asked:] / survival[asked - 1 : -1] == pytest.approx(PRIOR, abs=0.15)


def test_what_fell_unseen_with_the_first_draft_comes_back_with_it() -> None:
    rounds = Rounds(estimator())
    for rate, fits in ((0.03, lambda later: later < 0.2), (0.75, lambda later: later > 0.5)):
        rounds.steps(300, [rate] * MOST, 1, slots=(0, 1, 2, 3))
        survival = rounds.survival_of_strangers()
        assert fits(survival[2] / survival[1])


def test_a_draft_that_is_asked_for_and_never_offered_yields_nothing() -> None:
    """The source offers two of the five that are asked for, and both are right."""
    rounds = Rounds(estimator())
    rounds.steps(3000, [1.0, 1.0, 0.0, 0.0, 0.0], MOST)
    survival = rounds.survival_of_strangers()
    assert survival[1] > 0.95 and survival[2] < 0.05


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.1), (0.1, 0.85)])
@pytest.mark.parametrize("rows", [1, 16])
def test_a_flip_is_followed_within_200_steps(before: float, after: float, rows: int) -> None:
    rounds, slots = Rounds(estimator()), tuple(range(rows))
    rounds.steps(3000 // rows, [before] * MOST, 3, slots)
    rounds.steps(200, [after] * MOST, 3, slots)
    assert rounds.estimator.survival(0, rows)[0] == pytest.approx(after, abs=0.2)


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.2), (0.2, 0.85)])
def test_a_flip_is_noticed_by_a_hundred_single_drafts_behind_thousands(before: float, after: float) -> None:
    """Of ever new requests: what probes see."""
    rounds = Rounds(estimator())
    rounds.steps(300, [before] * MOST, MOST, slots=tuple(range(16)))
    for slot in range(20, 120):
        rounds.estimator.admit(slot, False)
        rounds.steps(1, [after] * MOST, 1, slots=(slot,))
    assert rounds.survival_of_strangers()[0] == pytest.approx(after, abs=0.25)


def test_chance_alone_is_no_reason_to_forget() -> None:
    rounds = Rounds(estimator())
    found = []
    for _ in range(150):
        rounds.steps(10, [0.6] * MOST, 2, slots=(0, 1, 2, 3))
        found.append(rounds.survival_of_strangers()[0])
    assert np.std(found[30:]) < 0.04 and np.mean(found[30:]) == pytest.approx(0.6, abs=0.03)


def test_luck_grows_with_drafts_that_are_right_and_ends_where_it_is_believed() -> None:
    rounds, one = Rounds(estimator()), np.array([0])
    rounds.steps(300, [0.1] * MOST, 1, slots=(0, 1, 2, 3))
    seen = []
    while rounds.survival_of_strangers()[0] < 0.3 and len(seen) < 20:
        rounds.steps(1, [1.0] * MOST, 1)
        seen.append(rounds.estimator.luck(one, one * 0))
    assert 2 <= len(seen) < 10
    assert seen[0] > 0.5 and (np.diff(seen[:-1]) > 0).all() and seen[-1] == 0
    rounds.steps(3, [0.0] * MOST, 1)
    assert rounds.estimator.luck(one, one * 0) == 0


def test_where_drafts_are_rare_fewer_of_them_are_believed() -> None:
    """The text had more occasions to change between two of them."""

    def right_ones_until_believed(steps_apart: int) -> int:
        rounds, one = Rounds(estimator()), np.zeros(1, np.int64)
        rounds.steps(300, [0.2], asked=1)
        before = rounds.estimator.survival(0, 1)[0]
        for number in range(1, 30):
            rounds.estimator.observe(one, one, one + 1, one + 1, steps_apart)
            if rounds.estimator.survival(0, 1)[0] > before + 0.4:
                return number
        return 30

    often, seldom, hardly = (right_ones_until_believed(apart) for apart in (1, 10, 10**6))
    assert 2 <= hardly <= seldom < often < 10


def test_what_is_believed_of_few_is_young() -> None:
    rounds, one = Rounds(estimator()), np.zeros(1, np.int64)
    rounds.steps(300, [0.2], asked=1)
    assert not rounds.estimator.young(one, one)
    rounds.steps(9, [1.0], asked=1)  # of which some are believed
    assert rounds.estimator.young(one, one)
    rounds.steps(60, [1.0], asked=1)
    assert not rounds.estimator.young(one, one)


@pytest.mark.parametrize("asked", [1, 3])
def test_positions_differ_as_they_did_before_a_flip(asked: int) -> None:
    """There and back again, whatever was seen of later positions meanwhile."""
    rounds, before = Rounds(estimator()), [0.8, 0.6, 0.7, 0.5, 0.6]
    rounds.steps(400, before, MOST, slots=(0, 1, 2, 3))
    was = rounds.survival_of_strangers()
    rounds.steps(100, [0.2, 0.08, 0.13, 0.06, 0.08], asked, slots=(0, 1, 2, 3))  # all odds by the same factor
    assert rounds.survival_of_strangers()[0] == pytest.approx(0.2, abs=0.07)
    rounds.steps(100, before, 1, slots=(0, 1, 2, 3))
    assert rounds.survival_of_strangers() == pytest.approx(was, abs=0.15)


def test_a_request_is_known_by_its_own_rounds() -> None:
    """In a crowd that accepts most, the one that refuses; whoever gets its slot is like the crowd."""
    rounds, alone = Rounds(estimator()), np.array([7])
    for _ in range(100):
        rounds.steps(1, [0.8] * MOST, 3, slots=(0, 1, 2, 3, 4, 5))
        rounds.steps(1, [0.1] * MOST, 3, slots=(7,))
    assert rounds.estimator.survival(0, 1)[0] < 0.25
    rounds.estimator.admit(7, False)
    rounds.estimator.observe(alone, alone * 0, alone * 0, alone * 0)
    assert rounds.estimator.survival(0, 1)[0] > 0.6


def test_greedy_and_sampled_rows_are_told_apart() -> None:
    rounds = Rounds(estimator())
    rounds.estimator.admit(1, True)
    rounds.steps(2000, [0.9] * MOST, 2, slots=(0,))
    rounds.steps(2000, [0.3] * MOST, 2, slots=(1,))
    greedy, sampled = rounds.survival_of_strangers()[0], rounds.survival_of_strangers(sampled=True)[0]
    assert greedy > 0.8 and sampled < 0.4
    assert rounds.estimator.survival(1, 1)[0] == pytest.approx((greedy + sampled) / 2, abs=0.05)


def test_sources_count_by_how_often_they_write() -> None:
    rounds = Rounds(estimator("rare", "common"))
    for _ in range(400):
        rounds.steps(1, [0.1] * MOST, 2, slots=(0,), source=0)
        rounds.steps(3, [0.9] * MOST, 2, slots=(1,), source=1)
    assert rounds.survival_of_strangers()[0] == pytest.approx(0.25 * 0.1 + 0.75 * 0.9, abs=0.08)


def test_constrained_rows_are_told_apart_from_free_ones() -> None:
    """What grammars refuse says nothing of drafts in free text."""
    e = estimator()
    for slot in range(8):
        e.admit(slot, sampled=False, constrained=slot >= 4)
    slots, asked = np.arange(8), np.full(8, MOST)
    for _ in range(300):
        e.observe(slots, np.zeros(8, np.int64), asked, np.where(slots < 4, MOST, 0))
    assert e.survival(0, 4)[0] > 0.9
    assert e.survival(0, 4, 0, 4)[0] < 0.1
    assert e.survival(0, 8, 0, 4)[0] == pytest.approx(0.5, abs=0.05)
