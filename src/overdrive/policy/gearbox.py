"""The gear box: how much every step drafts, from measured costs and expected acceptance. Pure; never torch.

A step that decodes R rows with K drafts each is worth

    value(K) = expected tokens(K) - pace * seconds(K)

and the best K is the global maximum over all that the device is prepared for: costs are a staircase, so there is no
hill to climb. `pace`, tokens a second of decoding, is what makes the sum of such values the ratio of the sums
(Dinkelbach, On nonlinear fractional programming, 1967).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from overdrive.policy.controller import Beliefs, Controller, LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.types import Outcome, Plan, Row, Step, Why

PROBE_BUDGET = 0.0025
"""Share of the tokens that trying a larger K may cost."""

RAREST_PROBE, OFTENEST_PROBE, OFTENEST_AT_ZERO = 2000, 100, 16
"""Steps between two probes, at most and at least. At K = 0 nothing else tells that drafts are right again; above, what
is accepted of fewer drafts tells of more."""

CHANGE, CHANGE_WITH_DRAFTS = 0.5, 0.1
"""Steps that a change to or from K = 0 is taken to cost, and one between others. Those cost a device nothing: the
second only keeps an estimate's noise out."""

PACE_STEPS = 200
"""Steps over which decoding beside prompts is compared with decoding alone."""

MOST_PACE = 4.0
"""Where nearly all steps hold prompts, decoding beside them is almost free and drafts almost never pay by throughput
alone; a row that decodes there still shall not wait for ever."""

MOST_LAG = 256
"""Steps behind which a drafter catches up no more but starts afresh."""


LEARNT_ROWS = 64
"""Most rows of a step to learn acceptance from; the others' turn comes in the next steps."""

STEPS_A_REFRESH = 4
"""Settled steps after which survival is computed anew."""

STEPS_A_CORRECTION = 8
"""One in so many steps corrects the cost table."""


class Prospect(NamedTuple):
    """What a candidate K promises for one step.

    asked: drafts of all rows together. tokens: expected. seconds: of the whole step. value: in tokens.
    """

    drafts: int
    asked: int
    tokens: float
    seconds: float
    value: float


class Gearbox(Controller):
    """A controller that changes K where the tokens it expects to gain by that exceed the cost of changing.

    switches, probes: changes of K, and single steps that tried a larger one, since the start.
    """

    def __init__(self, costs: CostTable, estimator: AcceptanceEstimator, plans: Sequence[int]) -> None:
        """plans: the Ks beside 0 to choose from. Raises ValueError for one the estimator does not know."""
        self.costs = costs
        self.estimator = estimator
        self.switches = 0
        self.probes = 0
        self._ks = sorted({0, *plans})
        if self._ks[-1] > estimator.max_drafts or self._ks[0] < 0:
            raise ValueError(f"plans {list(plans)} must lie between 0 and {estimator.max_drafts}")
        self._current = 0  # index into _ks
        self._evidence = [0.0] * len(self._ks)  # seconds each candidate would have saved since it looked better
        self._credit = 0.0  # share of a step's tokens that the next probe may cost
        self._since_drafts = 0  # steps chosen since the last with drafts
        self._acceptance = _Acceptance(estimator)
        self._pace = _Pace()
        self._lag = _Lag(costs)

    @property
    def plans(self) -> Sequence[int]:
        return tuple(self._ks[1:])

    def choose(self, view: LoadView) -> Plan:
        if not view.decode_rows:
            return Plan(0, Why(rule="prefill"))
        prospects, pace = self._weigh(view)
        self._gather(prospects, pace, view.decode_rows)
        probing = self._probes(prospects, pace, view)
        index = self._current + probing
        alone = self.costs.step(view.prefill_tokens, 0) if view.prefill_tokens else 0.0
        self._pace.add(view.decode_rows, prospects[index], pace, alone)
        self._since_drafts = 0 if index else self._since_drafts + 1
        return _explained("probe" if probing else "gear", prospects, index)

    def observe(self, step: Step, outcome: Outcome) -> None:
        """Learn acceptance and costs. Slots are known by the admissions that steps carry."""
        self._acceptance.observe(step, outcome)
        drafts = step.plan.drafts if any(map(_DRAFTS, step.rows)) else 0
        if sum(map(_KNOWN, step.rows)) == len(step.rows):  # no prompts
            if step.number % STEPS_A_CORRECTION == 0:
                asked = sum(map(_DRAFTS, step.rows))
                fed = self.costs.fed(len(step.rows), drafts, asked, 0)
                self.costs.correct(fed, sum(map(_UPPER_LEN, step.rows)) - asked, sum(outcome.seconds[1:]))
            self._lag.settled(step.number, len(step.rows), drafts, outcome.seconds[0])

    def prospects(self, view: LoadView) -> list[Prospect]:
        """Every candidate for a step of that load, K = 0 first, as it would be weighed now. Nothing is decided."""
        return self._weigh(view)[0]

    def beliefs(self) -> Beliefs:
        """What choices are made from by now."""
        survival, errors = self.estimator.predicted.tolist(), self.estimator.calibration.tolist()
        return Beliefs(survival, errors, self.costs.corrected())

    def _weigh(self, view: LoadView) -> tuple[list[Prospect], float]:
        """Every candidate, K = 0 first, and the pace: tokens that a second is worth."""
        rows, context, prefill, costs = view.decode_rows, view.context_tokens, view.prefill_tokens, self.costs
        found, best = [], 0.0
        for k, (asked, accepted) in zip(self._ks, self._yields(view), strict=True):
            drafting = costs.draft(k, rows)
            masks = view.masked_rows * (1 + k)
            step = whole = costs.step(costs.fed(rows, k, asked, 0), context)
            if prefill:
                whole = costs.step(costs.fed(rows, k, asked, prefill), context)
            alone, seconds = (drafting + one + costs.waiting(masks, one) for one in (step, whole))
            best = max(best, (rows + accepted) / alone)
            found.append((k, asked, rows + accepted, seconds))
        pace = self._pace.ratio * best
        return [Prospect(*one, one[2] - pace * one[3]) for one in found], pace

    def _yields(self, view: LoadView) -> list[tuple[int, float]]:
        """For every candidate, drafts asked for and accepted ones to expect, all rows together."""
        takers, asked, accepted = view.decode_rows, 0, 0.0
        by_depth = [(0, 0.0)]
        for position, share in enumerate(self._acceptance.survival(view)):
            if view.caps:
                takers -= view.caps[position] if position < len(view.caps) else takers
            asked += takers
            accepted += takers * share
            by_depth.append((asked, accepted))
        return [by_depth[k] for k in self._ks]

    def _gather(self, prospects: Sequence[Prospect], pace: float, rows: int) -> None:
        """Add this step's gains over the current K to each candidate's evidence; change K where that is enough.

        A lasting gain of 1 % is taken within some fifty steps, an estimate that swings about none hardly ever.
        """
        now = prospects[self._current]
        gains = [(one.value - now.value) / pace for one in prospects]
        self._evidence = [max(0.0, gained + gain) for gained, gain in zip(self._evidence, gains, strict=True)]
        exceeding = [
            gained - self._seconds_to_change(now, one, rows) if gain > 0 else 0.0
            for gained, gain, one in zip(self._evidence, gains, prospects, strict=True)
        ]
        most = max(exceeding)
        if most > 0:
            self._current = exceeding.index(most)
            self._evidence = [0.0] * len(self._ks)
            self._credit = 0.0
            self.switches += 1

    def _seconds_to_change(self, now: Prospect, other: Prospect, rows: int) -> float:
        """A share of a step; when leaving K = 0, the drafter's catching up where that takes longer."""
        if now.drafts and other.drafts:
            return CHANGE_WITH_DRAFTS * now.seconds
        caught_up = 0.0 if now.drafts else self._lag.seconds(rows, self._since_drafts)
        return max(CHANGE * now.seconds, caught_up)

    def _probes(self, prospects: Sequence[Prospect], pace: float, view: LoadView) -> bool:
        """Whether this step tries the next larger K, so that acceptance there is known: when it can be afforded.

        Every step saves PROBE_BUDGET of its tokens. Beside prompts, where time is short, a probe must be saved for
        twice. At K = 0 it pays for the drafter's catching up as well.
        """
        now, tried = prospects[self._current], prospects[min(self._current + 1, len(prospects) - 1)]
        if tried.asked <= now.asked:
            return False
        self._credit += PROBE_BUDGET
        loss = now.value - tried.value
        if not now.drafts:
            loss += pace * self._lag.seconds(view.decode_rows, self._since_drafts)
        loss *= (2 if view.prefill_tokens else 1) / now.tokens
        soonest = OFTENEST_PROBE if now.drafts else OFTENEST_AT_ZERO
        if self._credit < min(max(loss, soonest * PROBE_BUDGET), RAREST_PROBE * PROBE_BUDGET):
            return False
        self._credit = 0.0
        self.probes += 1
        return True


def _explained(rule: str, prospects: Sequence[Prospect], index: int) -> Plan:
    """The plan with its reason."""
    chosen = prospects[index]
    others = [one for one in prospects if one is not chosen]
    second = max(others, key=_VALUE) if others else chosen
    why = Why(rule, chosen.tokens, chosen.seconds, second.drafts, second.tokens / second.seconds)
    return Plan(chosen.drafts, why)


class _Acceptance:
    """The estimator's view of settled steps, at a bounded cost however many rows they have."""

    def __init__(self, estimator: AcceptanceEstimator) -> None:
        self._estimator = estimator
        self._survival: list[float] = []
        self._sampled_share = 0.0
        self._settled = STEPS_A_REFRESH  # steps since it was computed

    def survival(self, view: LoadView) -> list[float]:
        """[max_drafts]."""
        share = view.sampled_rows / view.decode_rows
        if self._settled >= STEPS_A_REFRESH or share != self._sampled_share:
            self._survival = self._estimator.survival(view.sampled_rows, view.decode_rows - view.sampled_rows).tolist()
            self._sampled_share, self._settled = share, 0
        return self._survival

    def observe(self, step: Step, outcome: Outcome) -> None:
        for admission in step.admissions:
            self._estimator.admit(admission.slot, admission.params.temperature > 0)
        stride = -(-len(step.rows) // LEARNT_ROWS) or 1
        turn = slice(step.number % stride, None, stride)
        rows, counts = step.rows[turn], outcome.counts[turn]
        slots, asked, sources = _of(rows, _SLOT), _of(rows, _DRAFTS), outcome.sources[turn]
        emitting = counts > 0
        if not emitting.all():
            slots, asked, sources, counts = slots[emitting], asked[emitting], sources[emitting], counts[emitting]
        self._estimator.observe(slots, sources, asked, counts - 1)
        self._settled += 1


class _Pace:
    """How much cheaper a decoded token is lately than in steps without prompts: 1 where there are none.

    Prompts are work that comes with the requests, whatever K is; what drafts compete with is only what decoding adds to
    a step. Beside a prompt it adds little, since the weights are read for the prompt anyway. Kept relative to the
    best pace alone, so that it holds when the load changes.
    """

    def __init__(self) -> None:
        self._tokens = self._worth = PACE_STEPS / 10  # tokens per row, and what the time spent is worth alone

    @property
    def ratio(self) -> float:
        return min(max(self._tokens / self._worth, 1.0), MOST_PACE)

    def add(self, rows: int, chosen: Prospect, pace: float, alone: float) -> None:
        """A step was planned. alone: seconds its prompts take by themselves."""
        keep = 1 - 1 / PACE_STEPS
        worth = pace / self.ratio * max(chosen.seconds - alone, 0.0)
        self._tokens = self._tokens * keep + chosen.tokens / rows
        self._worth = self._worth * keep + worth / rows


class _Lag:
    """What it costs a drafter to catch up, learnt from settled steps."""

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._slowness = 1.0  # measured / guessed seconds
        self._behind = 0  # settled steps since the last with drafts

    def seconds(self, rows: int, steps: int) -> float:
        """Expected for so many rows that missed so many steps."""
        return self._slowness * self._costs.catch_up(rows * min(steps, MOST_LAG))

    def settled(self, number: int, rows: int, drafts: int, seconds: float) -> None:
        """A step of decode rows was drafted in so many seconds."""
        if drafts and seconds > 0:
            if not self._behind and number % STEPS_A_CORRECTION == 0:
                self._costs.correct_draft(drafts, rows, seconds)
            guessed = self._costs.catch_up(rows * min(self._behind, MOST_LAG))
            if guessed > 0:
                extra = max(0.0, seconds - self._costs.draft(drafts, rows))
                self._slowness += (min(extra / guessed, 10.0) - self._slowness) / 4
        self._behind = 0 if drafts else self._behind + 1


_SLOT, _DRAFTS, _KNOWN, _UPPER_LEN = (attrgetter(name) for name in ("slot", "drafts", "known", "upper_len"))
_VALUE = attrgetter("value")


def _of(rows: Sequence[Row], field: attrgetter) -> np.ndarray:
    """[rows] int64, a field of every row."""
    return np.fromiter(map(field, rows), np.int64, len(rows))
