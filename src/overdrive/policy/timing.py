"""Settled steps of one kind in a row, timed together: what a step usually takes corrects what it is said to cost.

Knows settled steps and the cost table; never who asks it.
"""

from __future__ import annotations

from statistics import median

from overdrive.policy import columns
from overdrive.policy.cost import CostTable
from overdrive.types import Outcome, Step

MOST_STEPS = 8
"""Steps that are timed together. Their median counts: a step during which the machine did something else says nothing
of any K."""

LEAST_STEPS = 3
"""Fewer in a row teach nothing."""


class Timing:
    """Corrects a cost table by the steps that settle. Those of a kind have the same number of rows, the same K and no
    prompts."""

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._kind = (0, 0)  # rows, drafts
        self._last: Step | None = None
        self._steps: list[float] = []  # seconds without drafting
        self._drafts: list[float] = []  # seconds of drafting with nothing to catch up on

    def add(self, step: Step, outcome: Outcome, drafts: int, behind: bool) -> None:
        """A step without prompts has settled. drafts: 0 where no row had any. behind: its drafter had to catch up."""
        kind = len(step.rows), drafts
        if kind != self._kind:
            self.settle()
            self._kind = kind
        self._last = step
        self._steps.append(sum(outcome.seconds[1:]))
        if drafts and not behind:
            self._drafts.append(outcome.seconds[0])
        if len(self._steps) >= MOST_STEPS:
            self.settle()

    def settle(self) -> None:
        """Correct by the steps since the last time."""
        (rows, drafts), step = self._kind, self._last
        if step is not None and len(self._steps) >= LEAST_STEPS:
            asked = int(columns.drafts(step.rows).sum()) if drafts else 0
            context = int(columns.upper_lens(step.rows).sum()) - asked
            self._costs.correct(rows, drafts, asked, context, median(self._steps), len(self._steps))
            if len(self._drafts) >= LEAST_STEPS:
                self._costs.correct_draft(drafts, rows, context, median(self._drafts), len(self._drafts))
        self._steps.clear()
        self._drafts.clear()
