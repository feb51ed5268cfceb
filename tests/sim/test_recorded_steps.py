"""The gear box on a machine whose steps take what an H200's took; drafts are accepted by chance.

Its costs are measured as those of any padded device are, and scatter. No GPU is needed: only times are real.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from overdrive.device.costs import CostSizes, measure_costs
from overdrive.device.rehearsal import Timed
from overdrive.policy.controller import LoadView
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox
from overdrive.types import Outcome, Row, Step

RECORDED = json.loads(Path(__file__).with_name("h200_steps.json").read_text())
KS = tuple(int(k) for k in RECORDED["steps"])
ROWS, POSITIONS = RECORDED["rows"], RECORDED["positions"]
SIZES = CostSizes((1, 2, 4, 8, 12, 16, 24, 30), 2048, 256, 2048, 8, 30, 60.0, padded=True)
LEARNING, STEPS = 200, 600


def line(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Linear between points, and beyond the last as between the last two."""
    if x > xs[-1]:
        return ys[-1] + (x - xs[-1]) * (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    return float(np.interp(x, xs, ys))


class H200:
    """Seconds of its steps, and as a rehearsal those with some scatter."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    @cache  # noqa: B019 - as long as a test
    def whole(self, rows: int, k: int, positions: float) -> float:
        return line(rows, ROWS, [line(positions, POSITIONS, each) for each in RECORDED["steps"][str(k)]]) / 1e3

    def drafting(self, rows: int, k: int) -> float:
        return line(rows, [1, 32], RECORDED["drafting"][str(k)]) / 1e3 if k else 0.0

    def fits(self, *shape: int) -> bool:
        return True

    def read(self, context: int, texts: int) -> None:
        pass

    def decode(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> list[Timed]:
        drafting, whole = self.drafting(rows, drafts), self.whole(rows, drafts, context)
        slower = 1 + 0.01 * abs(self._rng.standard_normal(steps))
        return [
            Timed(rows * (1 + drafts), rows * context, drafting, whole * each - drafting) for each in slower.tolist()
        ]


def expected(p: float, k: int) -> float:
    """Tokens of a row in a round."""
    return sum(p**j for j in range(k + 1))


def drive(gearbox: Gearbox, machine: H200, rows: int, positions: int, p: float, seed: int) -> list[int]:
    """K of every step."""
    rng, chosen = np.random.default_rng(seed), []
    view = LoadView(rows, 0, rows * positions)
    for number in range(LEARNING + STEPS):
        plan = gearbox.choose(view)
        k, drafting = plan.drafts, rows if plan.most_rows < 0 else min(plan.most_rows, rows)
        asked = np.where(np.arange(rows) < drafting, k, 0)
        accepted = np.minimum((rng.random((rows, k)) < p).cumprod(axis=1).sum(axis=1), asked)
        spent = machine.drafting(drafting, k), machine.whole(rows, k, positions) - machine.drafting(rows, k), 0.0, 0.0
        lines = tuple(Row(f"r{at}", at, 1, drafts, True, positions + k) for at, drafts in enumerate(asked.tolist()))
        sources, tokens = np.zeros(rows, np.int64), np.zeros((rows, k + 1), np.int64)
        gearbox.observe(Step(number, lines, plan), Outcome(tokens, accepted + 1, asked, sources, seconds=spent))
        chosen.append(k)
    return chosen[LEARNING:]


@pytest.mark.parametrize("p", [0.5, 0.7, 0.85])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("rows", ROWS)
def test_auto_is_as_fast_as_the_best_k_on_a_machine_like_an_h200(rows: int, positions: int, p: float) -> None:
    machine = H200(seed=rows + positions)
    costs = measure_costs(machine, SIZES, KS[1:], lambda done, total: None).table  # type: ignore[arg-type]
    gearbox = Gearbox(costs, AcceptanceEstimator(("drafter",), max(KS)), KS[1:])
    chosen = drive(gearbox, machine, rows, positions, p, seed=positions)
    seconds = {k: machine.whole(rows, k, positions) for k in KS}
    best = max(expected(p, k) / seconds[k] for k in KS)
    auto = sum(expected(p, k) for k in chosen) / sum(seconds[k] for k in chosen)
    assert auto >= 0.97 * best
