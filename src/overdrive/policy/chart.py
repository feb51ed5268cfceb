"""What the gear box would choose at every load: its own decision, asked beforehand. Pure; never torch.

Knows costs and the shares of drafts that are accepted. Must never know an engine, or who looks at the chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from overdrive.policy.controller import LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox, Prospect


@dataclass(frozen=True, slots=True)
class Choice:
    """The best K of one load, and what speaks for it.

    drafts: K. rate: its tokens a second. gain: rate over that of K = 0. runner_up: the second-best K, and
    runner_up_rate its tokens a second.
    """

    drafts: int
    rate: float
    gain: float
    runner_up: int
    runner_up_rate: float


def chart(
    costs: CostTable, plans: Sequence[int], survival: Sequence[float], rows: Sequence[int], contexts: Sequence[int]
) -> list[list[Choice]]:
    """[contexts][rows], what is chosen where so many rows decode, each at so many positions, for long and undisturbed.

    plans: the Ks beside 0. survival: the share of rows that accepts the first draft, the first two, ..; empty for what
    is expected before anything was seen.
    """
    gearbox = Gearbox(costs, _Acceptance(survival, max(plans, default=1)), plans)
    return [[_best(gearbox.prospects(LoadView(n, 0, n * length))) for n in rows] for length in contexts]


def _best(prospects: Sequence[Prospect]) -> Choice:
    """Of candidates, K = 0 first; there may be no other."""
    ranked = sorted(prospects, key=_VALUE, reverse=True)
    best, second = ranked[0], ranked[min(1, len(ranked) - 1)]
    rate, none = best.tokens / best.seconds, prospects[0].tokens / prospects[0].seconds
    return Choice(best.drafts, rate, rate / none, second.drafts, second.tokens / second.seconds)


class _Acceptance(AcceptanceEstimator):
    """Acceptance that is given, not learnt, whoever the rows are."""

    def __init__(self, survival: Sequence[float], max_drafts: int) -> None:
        super().__init__(("any",), max_drafts)
        self._given = np.asarray(survival, np.float64)

    def survival(
        self, sampled_rows: int, greedy_rows: int, masked_sampled: int = 0, masked_greedy: int = 0
    ) -> np.ndarray:
        if len(self._given):
            return self._given
        return super().survival(sampled_rows, greedy_rows, masked_sampled, masked_greedy)


_VALUE = attrgetter("value")
