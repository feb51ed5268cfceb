"""A machine of known costs and drafts of known acceptance, with a controller at its gear stick."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from overdrive.policy.controller import Controller, LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox
from overdrive.types import Outcome, Row, Step

PLANS = (1, 2, 3, 5, 7)
MOST = 7


def staircase(base: float = 4e-3, per_token: float = 2e-5, draft: float = 2e-4) -> CostTable:
    """Weights read once, then arithmetic that grows with tokens; a context that costs; drafts that cost a bit each."""
    tokens = np.array([1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048])
    contexts = np.array([0, 10_000, 100_000])
    seconds = np.maximum(base, per_token * tokens)[:, None] + 3e-8 * contexts
    rows = np.array([1, 64, 256])
    drafting = np.array(PLANS)[:, None] * (draft + 1e-6 * rows)
    return CostTable(tokens, contexts, seconds, rows, PLANS, drafting, padded_to=512)


def gearbox(costs: CostTable | None = None, plans: Sequence[int] = PLANS) -> Gearbox:
    return Gearbox(costs or staircase(), AcceptanceEstimator(("drafter",), MOST), plans)


def steady(rows: int, prefill: int = 0, context: int = 500) -> LoadView:
    """Rows that can take all drafts."""
    return LoadView(rows, prefill, rows * context)


class Machine:
    """Runs steps as a controller plans them: all rows accept each draft behind accepted ones with the same chance.

    drafts: K of every step so far. tokens, seconds: in all.
    """

    def __init__(self, controller: Controller, costs: CostTable | None = None, seed: int = 0) -> None:
        self.drafts: list[int] = []
        self.tokens = 0
        self.seconds = 0.0
        self._controller = controller
        self._costs = costs or staircase()
        self._rng = np.random.default_rng(seed)

    def run(self, steps: int, view: LoadView | Callable[[int], LoadView], rate: float) -> list[int]:
        """K of each of so many steps under that load, drafts being right with chance `rate`."""
        for number in range(steps):
            self._step(view(number) if callable(view) else view, rate)
        return self.drafts[-steps:]

    def _step(self, view: LoadView, rate: float) -> None:
        plan = self._controller.choose(view)
        k, rows = plan.drafts, view.decode_rows
        drafting = rows if plan.most_rows < 0 else min(plan.most_rows, rows)
        asked = np.where(np.arange(rows) < drafting, k, 0)
        right = (self._rng.random((rows, k)) < rate).cumprod(axis=1).sum(axis=1)
        accepted = np.minimum(right, asked)
        fed = self._costs.fed(rows, k, int(asked.sum()), view.prefill_tokens)
        seconds = (self._costs.draft(k, drafting), self._costs.step(fed, view.context_tokens), 0.0, 0.0)
        each = view.context_tokens // rows + k
        lines = [Row(f"r{slot}", slot, 1, drafts, True, each) for slot, drafts in enumerate(asked.tolist())]
        if view.prefill_tokens:
            lines.append(Row("prompt", rows, view.prefill_tokens, 0, False, view.prefill_tokens))
        nothing = np.zeros(len(lines), np.int64)
        counts, offered = nothing.copy(), nothing.copy()
        counts[:rows], offered[:rows] = accepted + 1, asked
        tokens = np.zeros((len(lines), k + 1), np.int64)
        self.drafts.append(k)
        self.tokens += int(counts.sum())
        self.seconds += sum(seconds)
        step = Step(len(self.drafts), tuple(lines), plan)
        self._controller.observe(step, Outcome(tokens, counts, offered, nothing, seconds=seconds))
