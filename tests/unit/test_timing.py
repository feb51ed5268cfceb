"""Costs follow what steps usually take; single slow ones and short runs teach nothing."""

from __future__ import annotations

import numpy as np
import pytest

from overdrive.policy.cost import CostTable
from overdrive.policy.timing import LEAST_STEPS, MOST_STEPS, Timing
from overdrive.types import Outcome, Plan, Row, Step, Why


def table() -> CostTable:
    return CostTable([1, 4, 8, 16], [0, 1000], np.ones((4, 2)) * [[1], [2], [3], [4]], [1, 8], [1], [[0.5, 1.0]])


def settled(rows: int, drafts: int, forward: float, drafting: float = 0.0) -> tuple[Step, Outcome]:
    step = Step(1, tuple(Row(str(n), n, 1, drafts, True, 50) for n in range(rows)), Plan(drafts, Why(rule="test")))
    nothing = np.zeros(rows, np.int64)
    return step, Outcome(nothing[:, None], nothing, nothing, nothing, seconds=(drafting, forward, 0.0, 0.0))


def test_the_median_of_steps_of_a_kind_corrects_their_costs() -> None:
    """One step in eight that takes a hundred times as long is none of theirs."""
    costs = table()
    timing, before = Timing(costs), costs.step(8, 200)
    for number in range(100 * MOST_STEPS):
        slow = 100.0 if number % MOST_STEPS == 3 else 1.0
        timing.add(*settled(4, 1, 3.3 * slow, 0.9), 1, behind=False)
    assert costs.step(8, 200) == pytest.approx(1.1 * before, rel=0.01)
    assert costs.draft(1, 4) == pytest.approx(0.9, rel=0.02)


def test_drafting_that_had_to_catch_up_is_not_what_drafting_costs() -> None:
    costs = table()
    timing, before = Timing(costs), costs.draft(1, 4)
    for _ in range(10 * MOST_STEPS):
        timing.add(*settled(4, 1, 3.0, 5.0), 1, behind=True)
    assert costs.draft(1, 4) == before


def test_a_run_that_is_too_short_teaches_nothing() -> None:
    costs = table()
    timing, before = Timing(costs), costs.step(4, 200)
    for _ in range(50):
        for rows in (4, 3):
            for _ in range(LEAST_STEPS - 1):
                timing.add(*settled(rows, 0, 9.0), 0, behind=False)
    assert costs.step(4, 200) == before


def test_a_kind_that_ends_is_settled_by_itself() -> None:
    """And not with the sizes of the next one."""
    costs = table()
    timing, few, many = Timing(costs), costs.step(1, 50), costs.step(16, 800)
    for _ in range(200):
        for rows in (16, 1):
            for _ in range(LEAST_STEPS):
                timing.add(*settled(rows, 0, 1.3 * (4.0 if rows == 16 else 1.0)), 0, behind=False)
    assert costs.step(1, 50) == pytest.approx(1.3 * few, rel=0.02)
    assert costs.step(16, 800) == pytest.approx(1.3 * many, rel=0.02)
