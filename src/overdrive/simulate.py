"""`overdrive simulate`: names from the command line, and the table or JSON of what the simulator found.

Knows words for people. Everything it prints is simulated, and says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from overdrive.bars import LoadingBars, ProgressLines
from overdrive.errors import OverdriveError
from overdrive.policy.simulation.acceptance import parse_acceptance
from overdrive.policy.simulation.arms import parse_arm
from overdrive.policy.simulation.compare import Comparison, Figures, compare
from overdrive.policy.simulation.costs import MACHINES, Machine
from overdrive.policy.simulation.engine import World
from overdrive.policy.simulation.loads import Load, parse_load
from overdrive.policy.simulation.traces import read_trace

CAVEAT = (
    "simulated: costs and acceptance are models, no machine was measured. switches, probes: changes of K, and "
    "steps that try one, per 1,000; recovery: steps after the worst flip; p50, p99: ms per output token"
)
COLUMNS = ("controller", "tokens/s", "regret", "/best", "/K=0", "switches", "probes", "recovery", "K", "p50", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """steps: plain steps of work at each load. noise: deviation of step times, as a share.

    requests, speed: how much of a recorded trace, and how many times as fast.
    """

    steps: int = 1000
    noise: float = 0.05
    seed: int = 0
    requests: int = 1000
    speed: float = 1.0


def simulate(
    costs: Sequence[str],
    acceptances: Sequence[str],
    loads: Sequence[str],
    controllers: Sequence[str],
    settings: Settings,
    as_json: bool,
) -> None:
    """Play every combination, and print each when it is done. A wrong name raises OverdriveError before the first."""
    worlds = list(_worlds(costs, acceptances, loads, settings))
    for name in controllers:
        parse_arm(name, worlds[0].machine)
    console = Console()
    for world in worlds:
        label = f"{world.machine.name}, {world.acceptance.name}, {world.load.name}"
        with LoadingBars() if sys.stderr.isatty() else ProgressLines() as bars:  # closed before anything is printed
            found = compare(world, controllers, partial(bars.update, label))
        if as_json:
            print(json.dumps({"simulated": True, **asdict(settings), **asdict(found)}), flush=True)
        else:
            console.print(_table(found))
    if not as_json:
        console.print(CAVEAT, style="dim", highlight=False)


def _worlds(
    costs: Sequence[str], acceptances: Sequence[str], loads: Sequence[str], settings: Settings
) -> Iterator[World]:
    if settings.steps < 1 or settings.requests < 1 or settings.speed <= 0 or not 0 <= settings.noise <= 1:
        raise OverdriveError("--steps, --requests and --speed must be above 0, --noise between 0 and 1")
    for name in costs:
        if name not in MACHINES:
            raise OverdriveError(f"unknown costs {name!r}; there are {', '.join(MACHINES)}")
        for acceptance in map(parse_acceptance, acceptances):
            for load in loads:
                yield World(
                    machine=MACHINES[name],
                    acceptance=acceptance,
                    load=_load(load, MACHINES[name], settings),
                    noise=settings.noise,
                    seed=settings.seed,
                )


def _load(name: str, machine: Machine, settings: Settings) -> Load:
    """By name, or a recorded trace where the name is that of a file."""
    path = Path(name)
    if path.is_file():
        return read_trace(path, settings.requests, settings.speed, machine.prompt * 8)
    return parse_load(name, machine, settings.steps)


def _table(found: Comparison) -> Table:
    title = (
        f"{found.machine}, {found.acceptance}, {found.load} (simulated; best fixed K in hindsight: {found.best_fixed})"
    )
    table = Table(*COLUMNS, title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for figures in found.figures:
        table.add_row(*_cells(figures))
    return table


def _cells(figures: Figures) -> tuple[str, ...]:
    return (
        figures.controller,
        f"{figures.throughput:,.0f}",
        f"{figures.regret:.1%}",
        f"{figures.of_best:.3f}",
        f"{figures.of_off:.3f}",
        f"{figures.switches:.0f}",
        f"{figures.probes:.0f}",
        "-" if not figures.flips else "none" if figures.recovery is None else str(figures.recovery),
        f"{figures.mean_drafts:.2f}",
        *(f"{ms:.1f}" if ms else "-" for ms in figures.token_ms[::2]),
    )
