"""What a drafter lacks of rows that did not draft, and what it costs to read that. Host-side; numpy only.

Knows settled steps and a cost table. A prompt is taken to be read in the steps that feed it, so a row lacks at most
what it has got since.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overdrive.policy import columns
from overdrive.policy.cost import CostTable
from overdrive.types import Row, Step

STEPS_A_LOOK = 8
"""Settled steps after which the rows are looked at again, where anybody asks."""


class Missed:
    """Tokens that a drafter lacks, row by row.

    While all rows draft there is nothing to count: the newest such step is kept, and read when somebody asks.
    """

    def __init__(self, window: int) -> None:
        """window: most tokens of a row that the drafter reads afterwards; what it missed before them is left out."""
        self._window = window
        self._read = np.zeros(0, np.int64)  # by slot, tokens that the drafter has
        self._drafted: Step | None = None  # not yet in _read
        self._admitted: dict[int, int] = {}  # tokens by slot, since that step
        self._newest: Step | None = None
        self._sums = np.zeros(1, np.int64)  # [rows + 1] of the first rows, those that lack least first
        self._age = STEPS_A_LOOK

    def follow(self, step: Step, drafting: bool, everyone: bool) -> None:
        """A step has settled. drafting: rows of it had drafts. everyone: all that could."""
        if drafting and not everyone:
            self._settle()
        if drafting:
            self._enter_admitted()
            self._drafted = step
        for admission in step.admissions:
            self._admitted[admission.slot] = max(admission.prompt_len, len(admission.tokens))
        self._newest = step
        self._age = STEPS_A_LOOK if drafting else self._age + 1

    def tokens(self, rows: int) -> int:
        """Of so many decode rows together, those that lack least."""
        if self._age >= STEPS_A_LOOK and self._newest is not None:
            decoding = [row for row in self._newest.rows if row.known == 1]
            lags = np.sort(self._lags(decoding).clip(0))
            self._sums, self._age = np.concatenate([[0], lags.cumsum()]), 0
        return int(self._sums[min(rows, len(self._sums) - 1)])

    def before(self, step: Step) -> int:
        """Of the rows that draft in this step, which is about to be followed: what they had to catch up on."""
        if self._drafted is not None and self._drafted is self._newest:
            return 0
        lags = self._lags([row for row in step.rows if row.drafts])
        return int(lags.clip(0).sum())

    def _lags(self, rows: Sequence[Row]) -> np.ndarray:
        """[rows], tokens; none or less where the drafter lacks nothing."""
        self._settle()
        slots = columns.slots(rows)
        self._make_room(slots)
        return np.minimum(columns.upper_lens(rows) - columns.drafts(rows) - self._read[slots], self._window)

    def _settle(self) -> None:
        """Take in the newest step in which rows drafted."""
        if self._drafted is not None:
            rows = [row for row in self._drafted.rows if row.drafts]
            slots = columns.slots(rows)
            self._make_room(slots)
            self._read[slots] = columns.upper_lens(rows)
            self._drafted = None
        self._enter_admitted()

    def _enter_admitted(self) -> None:
        if self._admitted:
            slots = np.array(list(self._admitted))
            self._make_room(slots)
            self._read[slots] = list(self._admitted.values())
            self._admitted.clear()

    def _make_room(self, slots: np.ndarray) -> None:
        more = int(slots.max(initial=-1)) + 1 - len(self._read)
        if more > 0:
            self._read = np.concatenate([self._read, np.zeros(more, np.int64)])


class CatchUp:
    """What it costs a drafter to catch up, learnt from settled steps."""

    def __init__(self, costs: CostTable, window: int) -> None:
        """window: as in `Missed`."""
        self._costs = costs
        self._slowness = 1.0  # measured / guessed seconds
        self._missed = Missed(window)

    def seconds(self, rows: int) -> float:
        """Expected where so many rows draft in the next step, those that lack least."""
        return self._slowness * self._costs.catch_up(self._missed.tokens(rows))

    def settle(self, step: Step, drafting: int, seconds: float) -> bool:
        """A step has settled in which so many rows drafted, in so many seconds. Whether they had to catch up."""
        behind = False
        if drafting and seconds > 0:
            lacked = self._costs.catch_up(self._missed.before(step))
            behind = lacked > 0
            if behind:
                context = sum(row.upper_len - row.drafts for row in step.rows if row.drafts)
                extra = max(0.0, seconds - self._costs.draft(step.plan.drafts, drafting, context))
                self._slowness += (min(extra / lacked, 10.0) - self._slowness) / 4
        self._missed.follow(step, drafting > 0, step.plan.most_rows < 0)
        return behind

    def follow(self, step: Step) -> None:
        """A step has settled of which nothing is to be learnt."""
        self._missed.follow(step, columns.any_drafts(step.rows), step.plan.most_rows < 0)
