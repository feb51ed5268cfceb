"""The gear box: how much every step drafts, from measured costs and expected acceptance. Pure; never torch."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.policy.controller import Controller, LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.types import Outcome, Plan, Step


class Gearbox(Controller):
    """A controller that changes K where the tokens it expects to gain by that exceed the cost of changing."""

    def __init__(self, costs: CostTable, estimator: AcceptanceEstimator, plans: Sequence[int]) -> None:
        """plans: the Ks beside 0 to choose from. Raises ValueError for one the estimator does not know."""
        self.costs = costs
        self.estimator = estimator
        self._plans = tuple(plans)

    @property
    def plans(self) -> Sequence[int]:
        return self._plans

    def choose(self, view: LoadView) -> Plan:
        raise NotImplementedError

    def observe(self, step: Step, outcome: Outcome) -> None:
        """Learn acceptance and costs. Slots are known by the admissions that steps carry."""
        raise NotImplementedError
