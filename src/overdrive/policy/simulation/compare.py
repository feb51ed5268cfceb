"""Several controllers in the same simulated world: each in figures, beside the oracle and the best fixed K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from overdrive.policy.simulation.arms import parse_arm
from overdrive.policy.simulation.engine import World, play
from overdrive.policy.simulation.record import Run
from overdrive.policy.simulation.truth import PLANS

Tell = Callable[[int, int], None]
"""Told how many of how many runs are over."""
Percentiles = tuple[float, float, float]  # p50, p95, p99


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A run in figures, all simulated. Ratios are of throughputs.

    throughput: output tokens/s. regret: share lost against the oracle. of_best, of_off: against the best fixed K in
    hindsight, and against K = 0. switches, starts, probes: changes of K, those that leave K = 0, and steps that try
    one, per 1,000. recovery: steps after the worst flip, None where it has not recovered when the next flip or the end
    comes; 0 where the acceptance never flips.
    shares: of the time of decode steps by K, mean_drafts: their mean.
    token_ms: time per output token behind the first, in ms. first_ms: time to the first one.
    """

    controller: str
    throughput: float
    regret: float
    of_best: float
    of_off: float
    switches: float
    starts: float
    probes: float
    recovery: int | None
    flips: int
    steps: int
    mean_drafts: float
    shares: dict[int, float]
    token_ms: Percentiles
    first_ms: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """machine, acceptance, load: names. best_fixed: the best K in hindsight."""

    machine: str
    acceptance: str
    load: str
    best_fixed: int
    figures: tuple[Figures, ...]


def compare(world: World, controllers: Sequence[str], tell: Tell = lambda *_: None) -> Comparison:
    """Play `world` with every controller, with every fixed K and with the oracle."""
    all_fixed = {k: f"fixed:{k}" for k in (0, *PLANS)}
    played = _play_all(world, [*all_fixed.values(), "oracle", *controllers], tell)
    fixed = {k: played[name] for k, name in all_fixed.items()}
    best = max(fixed, key=lambda k: fixed[k].throughput)
    # The oracle looks one step ahead: where that loses a little to a fixed K, the fixed K is the better prophet.
    most = max(played["oracle"].throughput, fixed[best].throughput)
    runs = {name: played[name] for name in controllers}
    return Comparison(
        machine=world.machine.name,
        acceptance=world.acceptance.name,
        load=world.load.name,
        best_fixed=best,
        figures=tuple(_figures(name, run, world, most, fixed[best], fixed[0]) for name, run in runs.items()),
    )


def _play_all(world: World, controllers: Sequence[str], tell: Tell) -> dict[str, Run]:
    """Every controller once, by name."""
    names = [name for name in dict.fromkeys(controllers) if name != "off"]
    runs: dict[str, Run] = {}
    for name in names:
        tell(len(runs), len(names))
        runs[name] = run_of(world, name)
    tell(len(names), len(names))
    return runs | {"off": runs["fixed:0"]}


def run_of(world: World, controller: str) -> Run:
    """One controller by name. Raises OverdriveError for an unknown one."""
    return play(world, parse_arm(controller, world.machine))


def _figures(name: str, run: Run, world: World, most: float, best: Run, off: Run) -> Figures:
    """most: tokens/s of the oracle."""
    worst = max(run.recoveries(world.acceptance.flips), default=0.0)
    return Figures(
        controller=name,
        throughput=run.throughput,
        regret=1 - run.throughput / most,
        of_best=run.throughput / best.throughput,
        of_off=run.throughput / off.throughput,
        switches=run.switches,
        starts=run.starts,
        probes=run.probes,
        recovery=int(worst) if isfinite(worst) else None,
        flips=len(world.acceptance.flips),
        steps=len(run.drafts),
        mean_drafts=sum(k * share for k, share in run.shares.items()),
        shares=run.shares,
        token_ms=_percentiles(run.token_seconds),
        first_ms=_percentiles(run.first_seconds),
    )


def _percentiles(seconds: NDArray[np.float64]) -> Percentiles:
    """In ms; 0 of nothing."""
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99)) * 1000 if len(seconds) else (0.0, 0.0, 0.0)
    return (float(p50), float(p95), float(p99))
