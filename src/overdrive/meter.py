"""What settled steps tell of themselves, added up: device time by launch, plans and the reasons for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from overdrive.policy.acceptance import KEYS, DraftCounts
from overdrive.policy.controller import Beliefs
from overdrive.types import Outcome, Plan, Step, Why
from overdrive.wire import DraftStats, PlanStats


class Meter:
    """Counters since the start."""

    def __init__(self, counts: DraftCounts, beliefs: Callable[[], Beliefs] = Beliefs) -> None:
        """beliefs: as in `Gears`."""
        self.counts = counts
        self._beliefs = beliefs
        self.seconds = [0.0] * 4
        self.plans: Counter[int] = Counter()
        self.rules: Counter[str] = Counter()
        self._last = Step(0, (), Plan(0, Why(rule="")))
        self._expected = [0.0, 0.0]  # tokens and seconds of the steps whose plan had expectations
        self._found = [0.0, 0.0]

    def add(self, step: Step, outcome: Outcome) -> None:
        """Count one settled step."""
        self.seconds = [a + b for a, b in zip(self.seconds, outcome.seconds, strict=True)]
        self.plans[step.plan.drafts] += 1
        self.rules[step.plan.why.rule] += 1
        self._last, why = step, step.plan.why
        seconds = sum(outcome.seconds) + outcome.between
        # A step that reads prompts takes longer than its plan was made for.
        if why.expected_seconds and seconds and all(row.known == 1 and row.emits for row in step.rows):
            self._expected = [self._expected[0] + why.expected_tokens, self._expected[1] + why.expected_seconds]
            self._found = [self._found[0] + float(outcome.counts.sum()), self._found[1] + seconds]

    def planning(self) -> PlanStats:
        """The newest plan, and how far expectations and findings are apart."""
        plan, beliefs = self._last.plan, self._beliefs()
        why = plan.why
        decoding = [row for row in self._last.rows if row.known == 1 and row.emits]
        return PlanStats(
            rows=len(decoding),
            context=sum(row.upper_len - row.drafts for row in decoding),
            drafts=plan.drafts,
            rule=why.rule,
            expected_tokens=why.expected_tokens,
            expected_seconds=why.expected_seconds,
            runner_up=why.runner_up,
            runner_up_score=why.runner_up_score,
            rules=dict(self.rules),
            survival=beliefs.survival,
            acceptance_errors=beliefs.errors,
            costs=beliefs.costs,
            tokens_expected=self._expected[0],
            tokens_found=self._found[0],
            seconds_expected=self._expected[1],
            seconds_found=self._found[1],
        )


def draft_stats(counts: DraftCounts) -> list[DraftStats]:
    """The counts as they cross the link: every source and key, so that none appears late; none where K is always 0."""
    if not counts.max_drafts:
        return []
    arrays = (counts.rounds, counts.offered, counts.reached, counts.accepted)
    return [
        DraftStats(source=source, key=key, rounds=rounds, offered=offered, reached=reached, accepted=accepted)
        for source, rows in zip(counts.sources, zip(*(a.tolist() for a in arrays), strict=True), strict=True)
        for key, rounds, offered, reached, accepted in zip(KEYS, *rows, strict=True)
    ]
