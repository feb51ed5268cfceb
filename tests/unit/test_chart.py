"""The map of loads against the gear box that is driven through them, and what a meter tells of the newest plan."""

from __future__ import annotations

import numpy as np
import pytest

from overdrive.meter import Meter
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.chart import chart
from overdrive.policy.controller import Beliefs, LoadView
from overdrive.policy.cost import CostTable
from overdrive.types import Outcome, Plan, Row, Step, Why

from .gears import MOST, PLANS, gearbox, staircase

ROWS, CONTEXTS = (1, 8, 64, 256), (16, 500, 2000)


def always(box, view: LoadView, steps: int = 150) -> int:
    """K after so many choices at one load, probes left out, nothing being learnt."""
    plans = [box.choose(view) for _ in range(steps)]
    return [plan.drafts for plan in plans if plan.why.rule == "gear"][-1]


@pytest.mark.parametrize("draft", [2e-4, 2e-3])
def test_the_chart_has_what_the_gear_box_comes_to_at_every_load(draft: float) -> None:
    costs = staircase(draft=draft)
    found = chart(costs, PLANS, [], ROWS, CONTEXTS)
    for context, line in zip(CONTEXTS, found, strict=True):
        for rows, choice in zip(ROWS, line, strict=True):
            now = choice.rate / choice.runner_up_rate
            if now > 1.005:  # closer ones are a tie, which the gear box does not change for
                assert choice.drafts == always(gearbox(costs), LoadView(rows, 0, rows * context))
    assert len({choice.drafts for line in found for choice in line}) > 1


def test_the_chart_knows_what_drafts_gain_over_none() -> None:
    costs = staircase()
    sure = chart(costs, PLANS, [1.0] * MOST, [1], [500])[0][0]
    rates = {k: (1 + k) / (costs.draft(k, 1) + costs.step(1 + k, 500)) for k in (0, *PLANS)}
    assert (sure.drafts, sure.rate) == (7, pytest.approx(rates[7]))
    assert sure.gain == pytest.approx(rates[7] / rates[0])
    assert (sure.runner_up, sure.runner_up_rate) == (5, pytest.approx(rates[5]))
    hopeless = chart(costs, PLANS, [0.0] * MOST, [1], [500])[0][0]
    assert (hopeless.drafts, hopeless.gain) == (0, 1.0)


def test_where_nothing_may_be_drafted_the_chart_is_all_zeros() -> None:
    assert {choice.drafts for line in chart(staircase(), (), [], ROWS, CONTEXTS) for choice in line} == {0}


def test_corrected_costs_make_a_table_that_costs_as_much() -> None:
    table = staircase()
    for _ in range(50):
        table.correct(64, 0, 0, 0, 2 * table.step(64, 0))
        table.correct_draft(3, 64, 0, 0.5 * table.draft(3, 64))
    again = CostTable.from_dict({**table.to_dict({}), **table.corrected()}, {})
    for n in (1, 64, 700):
        assert again.step(n, 777) == pytest.approx(table.step(n, 777))
        assert again.draft(3, n) == pytest.approx(table.draft(3, n))


def test_a_meter_tells_the_newest_plans_load_and_the_controllers_beliefs() -> None:
    beliefs = Beliefs([0.7], [0.1], {"step_seconds": [[1.0]]})
    meter = Meter(DraftCounts(("any",), 2), lambda: beliefs)
    rows = (Row("a", 0, 1, 2, True, 12), Row("b", 1, 1, 0, True, 20), Row("prompt", 2, 16, 0, False, 16))
    nothing = np.zeros(3, np.int64)
    meter.add(Step(1, rows, Plan(2, Why("gear"))), Outcome(np.zeros((3, 3), np.int64), nothing, nothing, nothing))
    told = meter.planning()
    assert (told.drafts, told.rule, told.rows, told.context) == (2, "gear", 2, 10 + 20)
    assert (told.survival, told.acceptance_errors, told.costs) == ([0.7], [0.1], {"step_seconds": [[1.0]]})
