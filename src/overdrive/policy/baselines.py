"""Controllers to compare with: what servers do that do not weigh tokens against seconds. Pure; never torch."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.policy.controller import Controller, FixedDrafts, LoadView
from overdrive.types import Outcome, Plan, Step


class Off(FixedDrafts):
    """Never drafts."""

    def __init__(self) -> None:
        super().__init__(0)

    @property
    def plans(self) -> Sequence[int]:
        return ()


Fixed = FixedDrafts


class EmaLadder(Controller):
    """K falls with the number of rows, by thresholds, and with a moving average of acceptance: the common scheme."""

    def __init__(self, plans: Sequence[int], thresholds: Sequence[int]) -> None:
        """plans: Ks to step through. thresholds: [plans] rows up to which the largest, second largest, .. K is used."""
        self._plans = tuple(plans)

    @property
    def plans(self) -> Sequence[int]:
        return self._plans

    def choose(self, view: LoadView) -> Plan:
        raise NotImplementedError

    def observe(self, step: Step, outcome: Outcome) -> None:
        raise NotImplementedError


class Aimd(Controller):
    """One draft more after a step whose drafts were mostly right, half as many after one whose were not."""

    def __init__(self, plans: Sequence[int]) -> None:
        """plans: Ks to choose from; what is wanted between them is rounded down."""
        self._plans = tuple(plans)

    @property
    def plans(self) -> Sequence[int]:
        return self._plans

    def choose(self, view: LoadView) -> Plan:
        raise NotImplementedError

    def observe(self, step: Step, outcome: Outcome) -> None:
        raise NotImplementedError
