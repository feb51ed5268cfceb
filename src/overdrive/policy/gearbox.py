"""The gear box: how much every step drafts, from measured costs and expected acceptance. Pure; never torch.

A step that decodes R rows with K drafts each is worth

    value(K) = expected tokens(K) - pace * seconds(K)

and the best K is the global maximum over all that the device is prepared for: costs are a staircase, so there is no
hill to climb. `pace`, tokens a second of decoding, is what makes the sum of such values the ratio of the sums
(Dinkelbach, On nonlinear fractional programming, 1967).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from overdrive.policy import columns
from overdrive.policy.catching_up import CatchUp
from overdrive.policy.controller import Beliefs, Controller, LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.lessons import Lessons
from overdrive.policy.timing import Timing
from overdrive.types import Outcome, Plan, Step, Why

PROBE_BUDGET = 0.0065
"""Share of the tokens that trying a larger K may cost."""

RAREST_PROBE, OFTENEST_PROBE, OFTENEST_AT_ZERO = 2000, 100, 16
"""Steps between two probes, at most and at least. At K = 0 nothing else tells that drafts are right again; above, what
is accepted of fewer drafts tells of more."""

LUCK = 0.9
"""`AcceptanceEstimator.luck` from which on a probe that went well is followed by the next one at once."""

LOAN, REPAID = 4.0, 0.002
"""Steps that such probes may cost beyond the budget, and the share of a step that each step repays of them. The budget
itself is not touched, so that others go on meanwhile."""

USUAL_WAIT = 48
"""At K = 0 a probe need not hold all rows, only as many as so many steps save for."""

CHANGE, CHANGE_WITH_DRAFTS = 0.5, 0.1
"""Steps that a change to or from K = 0 is taken to cost, and one between others. Those cost a device nothing: the
second only keeps an estimate's noise out."""

PACE_STEPS = 200
"""Steps over which decoding beside prompts is compared with decoding alone."""

MOST_PACE = 4.0
"""Where nearly all steps hold prompts, decoding beside them is almost free and drafts almost never pay by throughput
alone; a row that decodes there still shall not wait for ever."""


class Prospect(NamedTuple):
    """What a candidate K promises for one step.

    rows: that draft. asked: drafts of all rows together. tokens: expected. seconds: of the whole step. value: in
    tokens.
    """

    drafts: int
    rows: int
    asked: int
    tokens: float
    seconds: float
    value: float


class Gearbox(Controller):
    """A controller that changes K where the tokens it expects to gain by that exceed the cost of changing.

    switches, probes: changes of K, and single steps that tried a larger one, since the start.
    """

    def __init__(
        self, costs: CostTable, estimator: AcceptanceEstimator, plans: Sequence[int], window: int = 256
    ) -> None:
        """plans: the Ks beside 0 to choose from. window: newest tokens of a row that the drafter reads where it has
        missed some; 0 where it has nothing to read. Raises ValueError for a plan that the estimator does not know."""
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
        self._lucky = False
        self._owed = 0.0  # of the loan
        self._lessons = Lessons(estimator)
        self._pace = _Pace()
        self._catch_up = CatchUp(costs, window)
        self._timing = Timing(costs)
        self._weighed = _Weighed([], LoadView(0, 0, 0), 0.0, [], 0.0)
        self._plan: Plan | None = None  # of the current K, as long as what was weighed holds

    @property
    def plans(self) -> Sequence[int]:
        return tuple(self._ks[1:])

    def choose(self, view: LoadView) -> Plan:
        if not view.decode_rows:
            return Plan(0, Why(rule="prefill"))
        prospects, pace = self._weigh(view)
        self._gather(prospects, pace, view.decode_rows)
        probe = self._probe(prospects, pace, view)
        chosen = probe or prospects[self._current]
        alone = self.costs.step(view.prefill_tokens, 0) if view.prefill_tokens else 0.0
        self._pace.add(view.decode_rows, chosen, pace, alone)
        if probe:
            return _explained("probe", probe, prospects, view.decode_rows)
        if self._plan is None:
            self._plan = _explained("gear", chosen, prospects, view.decode_rows)
        return self._plan

    def observe(self, step: Step, outcome: Outcome) -> None:
        """Learn acceptance and costs. Slots are known by the admissions that steps carry."""
        self._lessons.observe(step, outcome)
        if step.plan.why.rule == "probe":
            self._judge(step, outcome)
        rows, drafts = len(step.rows), step.plan.drafts if columns.any_drafts(step.rows) else 0
        plain = rows > 0 and step.rows[-1].known == 1  # prompts come last
        if plain and not step.masked and any(outcome.seconds):  # masks are counted for themselves
            self.costs.correct_between(outcome.between)
        few = step.plan.most_rows >= 0
        drafting = (min(step.plan.most_rows, rows) if few else rows) if drafts else 0
        behind = self._catch_up.settle(step, drafting, outcome.seconds[0] if plain else 0.0)
        if plain and not few:
            self._timing.add(step, outcome, drafts, behind)

    def follow(self, step: Step) -> None:
        self._lessons.meet(step)
        self._catch_up.follow(step)

    def observe_masks(self, masks: int, seconds: float) -> None:
        """Learn what a mask costs."""
        self.costs.correct_masks(masks, seconds)

    def _judge(self, step: Step, outcome: Outcome) -> None:
        """Whether the next probe is due at once: this one was righter than expected, and chance does not explain well
        how right they have been lately, or what is believed since then stands on few."""
        rows = [at for at, row in enumerate(step.rows) if row.drafts]
        expected = len(rows) * float(self.estimator.predicted[: step.plan.drafts].sum())
        self._lessons.learn()
        slots, sources = columns.slots([step.rows[at] for at in rows]), outcome.sources[rows]
        doubtful = self.estimator.luck(slots, sources) > LUCK or self.estimator.young(slots, sources)
        self._lucky = doubtful and float((outcome.counts[rows] - 1).sum()) > expected

    def prospects(self, view: LoadView) -> list[Prospect]:
        """Every candidate for a step of that load, K = 0 first, as it would be weighed now. Nothing is decided."""
        return self._weigh(view)[0]

    def beliefs(self) -> Beliefs:
        """What choices are made from by now."""
        survival, errors = self.estimator.predicted.tolist(), self.estimator.calibration.tolist()
        return Beliefs(survival, errors, self.costs.corrected())

    def _weigh(self, view: LoadView) -> tuple[list[Prospect], float]:
        """Every candidate, K = 0 first, and the pace: tokens that a second is worth.

        Steps follow each other that differ in nothing but a little context: what was weighed holds until more does.
        """
        survival, ratio = self._lessons.survival(view), self._pace.ratio
        load = replace(view, context_tokens=about(view.context_tokens))
        if survival is not self._weighed.survival or load != self._weighed.load or ratio != self._weighed.ratio:
            found = self._candidates(load, survival)
            pace = ratio * max(tokens / alone for _, tokens, alone, _ in found)
            rows = view.decode_rows
            prospects = [
                Prospect(k, rows if k else 0, asked, tokens, seconds, tokens - pace * seconds)
                for k, (asked, tokens, _, seconds) in zip(self._ks, found, strict=True)
            ]
            self._weighed = _Weighed(survival, load, ratio, prospects, pace)
            self._plan = None
        return self._weighed.prospects, self._weighed.pace

    def _candidates(self, view: LoadView, survival: Sequence[float]) -> list[tuple[int, float, float, float]]:
        """For every candidate: drafts asked for, tokens to expect, seconds of the step without prompts and as it is."""
        rows, context, prefill, costs = view.decode_rows, view.context_tokens, view.prefill_tokens, self.costs
        found = []
        for k, (asked, accepted) in zip(self._ks, self._yields(view, survival), strict=True):
            drafting = costs.draft(k, rows, context)
            step = whole = costs.plain(rows, k, asked, context)
            if prefill:
                whole = costs.mixed(rows, k, asked, context, prefill)
            alone, seconds = drafting + step + costs.between, drafting + whole + costs.between
            if view.masked_rows:
                masks = view.masked_rows * (1 + k)
                alone, seconds = alone + costs.waiting(masks, step), seconds + costs.waiting(masks, whole)
            found.append((asked, rows + accepted, alone, seconds))
        return found

    def _yields(self, view: LoadView, survival: Sequence[float]) -> list[tuple[int, float]]:
        """For every candidate, drafts asked for and accepted ones to expect, all rows together."""
        takers, asked, accepted = view.decode_rows, 0, 0.0
        by_depth = [(0, 0.0)]
        for position, share in enumerate(survival):
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
        if not any(self._evidence) and now.value >= max(map(_VALUE, prospects)):
            return
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
            self._credit, self._lucky = 0.0, False
            self._plan = None
            self.switches += 1

    def _seconds_to_change(self, now: Prospect, other: Prospect, rows: int) -> float:
        """A share of a step; when leaving K = 0, the drafter's catching up where that takes longer."""
        if now.drafts and other.drafts:
            return CHANGE_WITH_DRAFTS * now.seconds
        caught_up = 0.0 if now.drafts else self._catch_up.seconds(rows)
        return max(CHANGE * now.seconds, caught_up)

    def _probe(self, prospects: Sequence[Prospect], pace: float, view: LoadView) -> Prospect | None:
        """A step that tries the next larger K, so that acceptance there is known, when it can be afforded.

        Every step saves PROBE_BUDGET of its tokens. Beside prompts, where time is short, a probe must be saved for
        twice. Where not even drafts that are always right would pay, there is nothing to learn.
        """
        now, tried = prospects[self._current], prospects[min(self._current + 1, len(prospects) - 1)]
        if tried.asked <= now.asked:
            return None
        self._credit += PROBE_BUDGET
        self._owed = max(0.0, self._owed - REPAID)
        lucky = self._lucky and self._owed < LOAN
        if not lucky and self._credit < PROBE_BUDGET * (OFTENEST_PROBE if now.drafts else OFTENEST_AT_ZERO):
            return None
        larger = prospects[self._current + 1 :]
        if not any(view.decode_rows + one.asked - pace * one.seconds > now.value for one in larger):
            return None
        dear = (2 if view.prefill_tokens else 1) / now.tokens
        if now.drafts:
            loss = (now.value - tried.value) * dear
        else:
            tried, loss = self._cheapest(now, tried, pace, view, dear)
        if not lucky and self._credit < min(loss, RAREST_PROBE * PROBE_BUDGET):
            return None
        if lucky:
            self._owed += max(loss, 0.0)
        else:
            self._credit = 0.0
        self._lucky = False
        self.probes += 1
        return tried

    def _cheapest(
        self, now: Prospect, tried: Prospect, pace: float, view: LoadView, dear: float
    ) -> tuple[Prospect, float]:
        """Of the probes with all rows, half of them, a quarter, ..: the one that gives most drafts for what it costs,
        the drafter's catching up included, and can be saved for soon; and its cost as a share of a step's tokens. What
        is saved between two of them at least is spent by the cheapest too."""
        found, rows = [], view.decode_rows
        while rows:
            one = self._some(tried, pace, view, rows)
            loss = (now.value - one.value + pace * self._catch_up.seconds(rows)) * dear
            late = loss > USUAL_WAIT * PROBE_BUDGET
            found.append((late, loss if late else max(loss, PROBE_BUDGET * OFTENEST_AT_ZERO) / one.asked, one, loss))
            rows //= 2
        return min(found)[2:]

    def _some(self, tried: Prospect, pace: float, view: LoadView, rows: int) -> Prospect:
        """The same with fewer rows that draft."""
        share = rows / view.decode_rows
        asked, k = max(1, round(tried.asked * share)), tried.drafts
        tokens = view.decode_rows + (tried.tokens - view.decode_rows) * share
        context = view.context_tokens
        step = self.costs.mixed(view.decode_rows, k, asked, context, view.prefill_tokens)
        masks = view.masked_rows * (1 + k)
        drafting = self.costs.draft(k, rows, round(context * share))
        seconds = drafting + step + self.costs.waiting(masks, step) + self.costs.between
        return Prospect(k, rows, asked, tokens, seconds, tokens - pace * seconds)


class _Weighed(NamedTuple):
    """What was weighed last, and what for."""

    survival: Sequence[float]
    load: LoadView
    ratio: float
    prospects: list[Prospect]
    pace: float


def about(context: int) -> int:
    """Within 2 % of it, and the same for as long as may be."""
    step = 1 << max(0, context.bit_length() - 6)
    return context // step * step + step // 2


def _explained(rule: str, chosen: Prospect, prospects: Sequence[Prospect], rows: int) -> Plan:
    """The plan with its reason. rows: that decode."""
    second = max((one for one in prospects if one.drafts != chosen.drafts), key=_VALUE, default=chosen)
    why = Why(rule, chosen.tokens, chosen.seconds, second.drafts, second.tokens / second.seconds)
    return Plan(chosen.drafts, why, chosen.rows if 0 < chosen.rows < rows else -1)


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


_VALUE = attrgetter("value")
