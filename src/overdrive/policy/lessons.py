"""What settled steps teach of acceptance: some steps at a time, at a bounded cost however many rows they have.

Knows settled steps and the estimator; never costs or plans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overdrive.policy import columns
from overdrive.policy.controller import LoadView
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.types import Outcome, Row, Step

LEARNT_ROWS = 48
"""Most rows of a step to learn acceptance from; the others' turn comes in the next steps."""

STEPS_A_LESSON = 4
"""Settled steps that acceptance is learnt from together: the numbers of one cost as much as those of four, and where no
device hides the host's time it is everybody's."""


class Lessons:
    """The estimator's view of settled steps."""

    def __init__(self, estimator: AcceptanceEstimator) -> None:
        self._estimator = estimator
        self._survival: list[float] | None = None
        self._shares = (0.0, 0.0, 0.0)  # sampled, masked, both
        self._waiting: list[tuple[Step, Outcome]] = []  # settled, and not learnt from

    def survival(self, view: LoadView) -> list[float]:
        """[max_drafts]."""
        rows, sampled, masked, both = view.decode_rows, view.sampled_rows, view.masked_rows, view.masked_sampled
        shares = (sampled / rows, masked / rows, both / rows)
        if self._survival is None or shares != self._shares:
            self._survival = self._estimator.survival(sampled, rows - sampled, both, masked - both).tolist()
            self._shares = shares
        return self._survival

    def observe(self, step: Step, outcome: Outcome) -> None:
        """A step has settled."""
        self.meet(step)
        self._waiting.append((step, outcome))
        if len(self._waiting) >= STEPS_A_LESSON:
            self.learn()

    def meet(self, step: Step) -> None:
        """The requests that a step admits. Slots change hands with them: what came before is learnt first."""
        if not step.admissions:
            return
        self.learn()
        for admission in step.admissions:
            params = admission.params
            self._estimator.admit(admission.slot, params.temperature > 0, params.grammar is not None)

    def learn(self) -> None:
        """From all steps that wait for it."""
        if not self._waiting:
            return
        rows, counts, sources = _learnt(self._waiting)
        steps = len(self._waiting)
        self._waiting.clear()
        slots, asked = columns.slots(rows), columns.drafts(rows)
        emitting = counts > 0
        if not emitting.all():
            slots, asked, sources, counts = slots[emitting], asked[emitting], sources[emitting], counts[emitting]
        self._estimator.observe(slots, sources, asked, counts - 1, steps)
        self._survival = None


def _learnt(steps: Sequence[tuple[Step, Outcome]]) -> tuple[list[Row], np.ndarray, np.ndarray]:
    """Rows to learn from with their counts and sources: in turn where they are many, all where few of many draft; of
    steps without drafts, the last one's."""
    rows: list[Row] = []
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for step, outcome in steps:
        if not step.plan.drafts and step is not steps[-1][0]:
            continue
        if step.plan.most_rows >= 0:
            few = [at for at, row in enumerate(step.rows) if row.drafts]
            rows += [step.rows[at] for at in few]
            found.append((outcome.counts[few], outcome.sources[few]))
        else:
            stride = -(-len(step.rows) // LEARNT_ROWS) or 1
            turn = slice(step.number % stride, None, stride)
            rows += step.rows[turn]
            found.append((outcome.counts[turn], outcome.sources[turn]))
    counts, sources = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rows, counts, sources
