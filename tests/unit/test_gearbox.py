"""What the gear box chooses, on machines whose costs and acceptance are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.policy.baselines import Aimd, EmaLadder, Off
from overdrive.policy.controller import Controller, FixedDrafts, LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox, about
from overdrive.types import Admission, Outcome, Plan, Row, SamplingParams, Step, Why

from .gears import MOST, PLANS, Machine, gearbox, staircase, steady


class Told(AcceptanceEstimator):
    """Acceptance as the test says, whatever happens."""

    def __init__(self, survival: Sequence[float]) -> None:
        super().__init__(("drafter",), len(survival))
        self.told = np.array(survival)

    def survival(self, *rows: int) -> np.ndarray:
        return self.told


def told(rate: float) -> list[float]:
    return [rate ** (1 + j) for j in range(MOST)]


def flat(gain_needed: float) -> CostTable:
    """Steps of 10 ms; a draft costs so much of a step, at any number of rows."""
    drafting = [[k * gain_needed * 1e-2] * 2 for k in PLANS]
    return CostTable([1, 2048], [0, 1], [[1e-2] * 2] * 2, [1, 256], PLANS, drafting)


def advance(box: Gearbox, view: LoadView, steps: int = 1) -> list[Plan]:
    """Plans of steps of which nothing is learnt but that time passes."""
    nothing, plans = np.zeros(0, np.int64), []
    for number in range(steps):
        plans.append(box.choose(view))
        box.observe(Step(number, (), plans[-1]), Outcome(np.zeros((0, 1), np.int64), nothing, nothing, nothing))
    return plans


def settle(box: Gearbox, view: LoadView, steps: int = 200) -> int:
    """K after so many choices at one load, probes left out."""
    return [plan.drafts for plan in advance(box, view, steps) if plan.why.rule == "gear"][-1]


def best_score(costs: CostTable, view: LoadView, rate: float) -> dict[int, float]:
    """Tokens per second of every K where drafts are right with chance `rate`."""
    rows = view.decode_rows
    seconds = {k: costs.draft(k, rows) + costs.step(rows * (k + 1), view.context_tokens) for k in (0, *PLANS)}
    return {k: rows * sum(rate**j for j in range(k + 1)) / took for k, took in seconds.items()}


@settings(max_examples=40, deadline=None)
@given(st.floats(0.02, 0.97), st.integers(1, 256), st.integers(1, 8000))
def test_the_best_number_of_drafts_is_found_wherever_it_is(rate: float, rows: int, context: int) -> None:
    view = steady(rows, context=context)
    scores = best_score(staircase(), view, rate)
    k = settle(Gearbox(staircase(), Told(told(rate)), PLANS), view, 800)  # catching up may cost some steps, at 0.5 %
    assert scores[k] >= 0.995 * max(scores.values())


def test_costs_that_fall_with_the_batch_are_climbed_neither_up_nor_down() -> None:
    """A mixture of experts: few rows touch new experts with every draft, many rows touch them all anyway; and a dip."""
    tokens = [8, 16, 32, 64, 128, 256, 512, 1024]
    milliseconds = (4, 9, 16, 18, 18, 18, 18, 40)
    drafting = [[1e-5 * k] for k in PLANS]
    costs = CostTable(tokens, [0], [[1e-3 * t] for t in milliseconds], [1], PLANS, drafting, padded_to=1024)
    chosen = {rows: settle(Gearbox(costs, Told(told(0.6)), PLANS), steady(rows)) for rows in (8, 64)}
    assert chosen == {8: 0, 64: 7}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 256), st.floats(0.01, 0.95), st.integers(1, 60)), min_size=1, max_size=8))
def test_what_is_given_up_against_plain_decode_stays_below_half_a_step(spans: list[tuple[int, float, int]]) -> None:
    """By its own estimates, between two changes of K, however load and acceptance jump."""
    told_to = Told(told(0.5))
    costs = staircase()
    box, given_up, longest, switches = Gearbox(costs, told_to, PLANS), 0.0, 0.0, 0
    for rows, rate, steps in spans:
        told_to.told = np.array(told(rate))
        for _ in range(steps):
            (plan,) = advance(box, steady(rows))
            if box.switches != switches:
                given_up, longest, switches = 0.0, 0.0, box.switches
                continue
            if plan.why.rule == "probe":
                continue
            alone = rows / costs.step(rows, about(rows * 500))
            given_up = max(0.0, given_up + plan.why.expected_seconds - plan.why.expected_tokens / alone)
            longest = max(longest, plan.why.expected_seconds)
            assert given_up <= longest / 2 * (1 + 1e-9)


def test_a_lasting_gain_of_one_percent_is_taken_within_100_steps() -> None:
    box = Gearbox(flat(0.5), Told([0.495, *([0.0] * (MOST - 1))]), (1,))
    assert settle(box, steady(8)) == 0
    box.estimator.told[0] = 0.515  # 1.515 tokens in 1.5 steps
    assert settle(box, steady(8), 5) == 0
    assert settle(box, steady(8), 95) == 1
    box.estimator.told[0] = 0.485
    assert settle(box, steady(8), 5) == 1
    assert settle(box, steady(8), 95) == 0


def test_noise_changes_nothing() -> None:
    """Estimates that swing by 4 points about a loss of 1 %."""
    rng = np.random.default_rng(0)
    for k, mean in ((0, 0.485), (1, 0.515)):
        box = Gearbox(flat(0.5), Told([mean, *([0.0] * (MOST - 1))]), (1,))
        assert settle(box, steady(8)) == k
        before = box.switches
        for _ in range(3000):
            box.estimator.told = np.array([mean + rng.uniform(-0.04, 0.04), *([0.0] * (MOST - 1))])
            advance(box, steady(8))
        assert box.switches == before


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, MOST + 3), min_size=1, max_size=40), st.floats(0.3, 0.95))
def test_no_more_is_expected_than_rows_can_take(caps: list[int], rate: float) -> None:
    histogram = tuple(caps.count(cap) for cap in range(max(caps) + 1))
    view = LoadView(len(caps), 0, 500 * len(caps), caps=histogram)
    box = Gearbox(staircase(), Told(told(rate)), PLANS)
    for _ in range(60):
        plan = box.choose(view)
        most = [min(cap, plan.drafts) for cap in caps]
        assert plan.why.expected_tokens == pytest.approx(sum(sum(rate**j for j in range(m + 1)) for m in most))
    if not any(caps):
        assert plan.drafts == 0 and not box.probes


def test_drafts_of_constrained_rows_pay_for_their_masks() -> None:
    """A mask takes 1 ms, a step 10 ms: behind it ten of them are built for nothing, and no more."""
    costs, free = flat(0.02), flat(0.02)
    costs.correct_masks(1, 1e-3)
    told_rates = Told(told(0.7))
    chosen = [
        settle(Gearbox(table, told_rates, PLANS), LoadView(8, 0, 0, masked_rows=masked))
        for table, masked in ((free, 8), (costs, 1), (costs, 8))
    ]
    assert chosen[0] == chosen[1] >= 5 and chosen[2] < chosen[1]


@pytest.mark.parametrize("rows", [1, 16])
def test_prompts_are_no_decode_rows(rows: int) -> None:
    """Where a token more costs nothing, K does not depend on how many prompt tokens there are; no row, no drafts."""
    beside = {settle(Gearbox(flat(0.02), Told(told(0.7)), PLANS), steady(rows, n)) for n in (1, 300, 1000)}
    assert len(beside) == 1 and min(beside) >= 3
    assert gearbox().choose(LoadView(0, 900, 0)) == Plan(0, Why(rule="prefill"))


def test_prompts_that_come_and_go_do_not_make_it_thrash() -> None:
    """At a load where drafts hardly pay alone, and cost what they weigh beside prompts."""
    for rows in (64, 128, 192, 256):
        box = gearbox()
        machine = Machine(box)
        machine.run(200, steady(rows), 0.5)
        before = box.switches
        machine.run(1000, lambda n, rows=rows: steady(rows, 512 * (n % 3 == 0)), 0.5)
        assert box.switches - before <= 6


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize(("before", "after"), [(0.8, 0.03), (0.03, 0.8)])
def test_a_flip_of_acceptance_is_followed_within_200_steps(rows: int, before: float, after: float) -> None:
    machine = Machine(gearbox())
    machine.run(1000, steady(rows), before)
    machine.run(200, steady(rows), after)
    scores = best_score(staircase(), steady(rows), after)
    assert np.mean([scores[k] for k in machine.run(50, steady(rows), after)]) > 0.9 * max(scores.values())


def test_no_gear_is_one_way() -> None:
    machine = Machine(gearbox())
    assert min(machine.run(200, steady(2), 0.7)[-20:]) >= 3
    assert np.mean(machine.run(1000, steady(250), 0.2)[-500:]) < 0.1  # but for probes
    assert min(machine.run(40, steady(2), 0.7)[-10:]) >= 3


def test_where_drafts_never_pay_probes_cost_less_than_one_percent() -> None:
    for rows in (1, 16, 128, 256):
        machine, plain = Machine(gearbox()), Machine(Off())
        machine.run(100, steady(rows), 0.0)  # while it still hopes
        tokens, spent = machine.tokens, machine.seconds
        machine.run(1500, steady(rows), 0.0)
        plain.run(10, steady(rows), 0.0)
        off = plain.tokens / plain.seconds
        assert (machine.tokens - tokens) / (machine.seconds - spent) >= 0.99 * off


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4, 0.5])
def test_probes_that_went_well_for_a_while_delay_no_others(rate: float) -> None:
    """A streak of them is on credit; when it breaks, what it cost is repaid beside the ordinary ones."""
    costs = staircase(base=1e-3, per_token=1e-3, draft=3e-4)
    for seed in range(3):
        box = gearbox(costs)
        machine = Machine(box, costs, seed)
        machine.run(300, lambda step: steady(8, context=500 + step), 0.1)
        drafts = machine.run(4000, lambda step: steady(8, context=800 + step), rate)
        assert box.switches == 0
        assert np.diff(np.flatnonzero(drafts)).max() < 200


def test_a_machine_that_is_not_as_measured_is_learnt() -> None:
    """Drafts cost five times what the table says, so that they do not pay; then the table is right."""
    real = staircase(draft=3e-3)
    box = gearbox(staircase(draft=1e-4))
    machine = Machine(box, real)
    early = machine.run(40, steady(8), 0.4)
    assert max(early) >= 1
    assert np.mean(machine.run(4000, steady(8), 0.4)[-200:]) < 0.5


def test_slots_change_hands_by_admissions() -> None:
    """A greedy and a sampled request, one after the other in the same slot, do not teach each other."""
    box, nothing = gearbox(), np.zeros(1, np.int64)
    plan = Plan(1, Why(rule="test"))
    for number in range(1, 2001):
        sampled = number > 1000
        new = Admission("r", 0, (1,), 1, 0, SamplingParams(max_tokens=9, temperature=float(sampled)))
        step = Step(number, (Row("r", 0, 1, 1, True, 9),), plan, (new,) if number in (1, 1001) else ())
        box.observe(step, Outcome(np.zeros((1, 2), np.int64), nothing + 1 + sampled, nothing + 1, nothing))
    assert box.estimator.survival(0, 1)[0] < 0.3 < 0.7 < box.estimator.survival(1, 0)[0]


def test_plans_beyond_the_drafter_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 7"):
        gearbox(plans=(1, MOST + 1))


@pytest.mark.parametrize(
    "controller", [Off(), FixedDrafts(3), EmaLadder((1, 3, 5), (4, 16, 64)), Aimd((1, 3, 5)), gearbox()]
)
def test_every_controller_decides_for_what_it_said_it_would(controller: Controller) -> None:
    machine = Machine(controller)
    for rows, rate in ((1, 0.9), (64, 0.5), (250, 0.1), (1, 0.9)):
        assert set(machine.run(30, steady(rows), rate)) <= {0, *controller.plans}


def test_the_common_scheme_goes_by_rows_and_acceptance_and_aimd_comes_back() -> None:
    ladder = Machine(EmaLadder((1, 3, 5), (4, 16, 64)))
    assert [ladder.run(60, steady(rows), 0.9)[-1] for rows in (2, 10, 60, 100)] == [5, 3, 1, 0]
    assert ladder.run(60, steady(2), 0.05)[-1] == 3
    aimd = Machine(Aimd((1, 3, 5)))
    assert aimd.run(20, steady(4), 0.0)[-1] == 0
    assert aimd.run(60, steady(4), 0.98)[-1] == 5
