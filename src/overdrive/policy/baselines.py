"""Controllers to compare with: what servers do that do not weigh tokens against seconds. Pure; never torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from overdrive.policy.controller import Controller, FixedDrafts, LoadView
from overdrive.types import Outcome, Plan, Step, Why


class Off(FixedDrafts):
    """Never drafts."""

    def __init__(self) -> None:
        super().__init__(0)

    @property
    def plans(self) -> Sequence[int]:
        return ()


class EmaLadder(Controller):
    """K falls with the number of rows, by thresholds, and with a moving average of accepted drafts: the common scheme.

    Below the rows' rung, K is the least that exceeds the average by `HEADROOM`, so that it can grow again.
    """

    HEADROOM = 1.0
    SLOWNESS = 20
    """Steps that the average looks back on."""

    def __init__(self, plans: Sequence[int], thresholds: Sequence[int]) -> None:
        """plans: Ks to step through. thresholds: [plans] rising, rows up to which the largest, second largest, .. K is
        used. Raises ValueError where there are not as many."""
        if len(thresholds) != len(plans):
            raise ValueError(f"{len(plans)} plans need as many thresholds, not {len(thresholds)}")
        self._plans = tuple(sorted(plans))
        self._thresholds = tuple(sorted(thresholds))
        self._accepted = float(max(plans, default=0))  # drafts per row

    @property
    def plans(self) -> Sequence[int]:
        return self._plans

    def choose(self, view: LoadView) -> Plan:
        rung = bisect_left(self._thresholds, view.decode_rows)
        if rung == len(self._plans):
            return Plan(0, Why(rule="ladder"))
        most = len(self._plans) - 1 - rung
        wanted = bisect_left(self._plans, self._accepted + self.HEADROOM)
        return Plan(self._plans[min(most, wanted)], Why(rule="ladder"))

    def observe(self, step: Step, outcome: Outcome) -> None:
        asked, accepted, rows = _drafted(step, outcome)
        if asked:
            self._accepted += (accepted / rows - self._accepted) / self.SLOWNESS


class Aimd(Controller):
    """Half a draft more after a step whose drafts were mostly right, half as many after one whose were not.

    At K = 0 it tries again after some twenty steps.
    """

    RISE, RISE_FROM_ZERO = 0.5, 0.05

    def __init__(self, plans: Sequence[int]) -> None:
        """plans: Ks to choose from; what is wanted between them is rounded down."""
        self._plans = tuple(sorted(plans))
        self._wanted = float(max(plans, default=0))

    @property
    def plans(self) -> Sequence[int]:
        return self._plans

    def choose(self, view: LoadView) -> Plan:
        return Plan((0, *self._plans)[bisect_right(self._plans, self._wanted)], Why(rule="aimd"))

    def observe(self, step: Step, outcome: Outcome) -> None:
        asked, accepted, _ = _drafted(step, outcome)
        if not asked:
            self._wanted += self.RISE_FROM_ZERO
        elif 2 * accepted >= asked:
            self._wanted += self.RISE
        else:
            self._wanted /= 2
        self._wanted = min(self._wanted, float(max(self._plans, default=0)))


def _drafted(step: Step, outcome: Outcome) -> tuple[int, int, int]:
    """Drafts asked for, drafts accepted, and rows that were drafted for."""
    rounds = [
        (row.drafts, count - 1) for row, count in zip(step.rows, outcome.counts.tolist(), strict=True) if row.drafts
    ]
    return sum(asked for asked, _ in rounds), sum(accepted for _, accepted in rounds), len(rounds)
