"""Host time of the gear box: choosing a plan and learning from a settled step.

Run: PYTHONPATH=src python benchmarks/gearbox.py [--steps 2000]
Rows draft 3 tokens each; accepted counts are random. CPU time; means over steps, as some do more than others. Once with
costs that tokens tell, as of a CPU, and once with costs of their own for each K, as of a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from overdrive.policy.controller import LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.decoding import DecodeCosts
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox
from overdrive.types import Outcome, Plan, Row, Step, Why

PLANS = (1, 2, 3, 5, 7)
CONTEXT = 1024


def dense_costs() -> CostTable:
    """Of a dense 8B on one large GPU, by its floors: weights, arithmetic, KV."""
    tokens = np.unique(np.concatenate([2 ** np.arange(11), 3 * 2 ** np.arange(10)]))
    contexts = np.array([256, 16_384, 65_536, 262_144])
    seconds = np.maximum(3.5e-3, 19e-6 * tokens)[:, None] + 30e-9 * contexts
    rows = np.array([1, 4, 16, 64, 256])
    drafting = 0.05 * np.maximum(3.5e-3, 19e-6 * rows) * np.array(PLANS)[:, None]
    return CostTable(tokens, contexts, seconds, rows, np.array(PLANS), drafting, padded_to=512)


def costs_by_k() -> CostTable:
    """The same where every K has its own, at as many sizes as a GPU's are measured at."""
    rows, positions = np.array([1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]), np.array([256, 2048, 1 << 20])
    told = dense_costs()
    rest = {
        k: np.array([[told.step(n * (1 + k), n * at) for at in positions.tolist()] for n in rows.tolist()])
        for k in (0, *PLANS)
    }
    drafting = {k: np.array([[told.draft(k, n)] * len(positions) for n in rows.tolist()]) for k in rest}
    stored = {name: value for name, value in told.to_dict({}).items() if name != "key"}
    return CostTable(**stored | {"decode": DecodeCosts(positions.tolist(), dict.fromkeys(rest, rows), drafting, rest)})


def settled(number: int, rows: int, drafts: int, rng: np.random.Generator) -> tuple[Step, Outcome]:
    """A step of decode rows and what it brought."""
    plan = Plan(drafts, Why(rule="benchmark"))
    step = Step(number, tuple(Row(f"r{slot}", slot, 1, drafts, True, CONTEXT + drafts) for slot in range(rows)), plan)
    counts = 1 + rng.integers(0, drafts + 1, rows)
    nothing = np.zeros(rows, np.int64)
    seconds = (5e-4, 4e-3 + 3e-8 * rows * CONTEXT, 1e-4, 1e-4)
    tokens = np.zeros((rows, drafts + 1), np.int64)
    return step, Outcome(tokens, counts, nothing + drafts, nothing, seconds=seconds)


def measure(costs: CostTable, rows: int, steps: int) -> tuple[float, float]:
    """Microseconds of choosing and of observing, means."""
    rng = np.random.default_rng(0)
    gearbox = Gearbox(costs, AcceptanceEstimator(("eagle3",), max(PLANS)), PLANS)
    view = LoadView(rows, 0, rows * CONTEXT, caps=(0, rows // 3, 0, 0, 0, 0, 0, 0, rows - rows // 3))
    outcomes = [settled(number, rows, 3, rng) for number in range(16)]
    choosing, observing = [], []
    for number in range(steps):
        begun = time.thread_time()
        gearbox.choose(view)
        chosen = time.thread_time()
        gearbox.observe(*outcomes[number % len(outcomes)])
        choosing.append(chosen - begun)
        observing.append(time.thread_time() - chosen)
    return statistics.fmean(choosing) * 1e6, statistics.fmean(observing) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    print(f"{'costs':10} {'rows':>6} {'choose us':>10} {'observe us':>11} {'together':>9}")
    for rows in (1, 64, 256):
        for name, costs in (("by tokens", dense_costs()), ("by K", costs_by_k())):
            choosing, observing = measure(costs, rows, steps)
            print(f"{name:10} {rows:>6} {choosing:>10.1f} {observing:>11.1f} {choosing + observing:>9.1f}")


if __name__ == "__main__":
    main()
