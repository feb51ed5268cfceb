"""What a drafter costs a server that drafts nothing: steps at K = 0 with and without one.

Run: PYTHONPATH=src python benchmarks/keeping.py [--rows 1 4 16] [--builds 5] [--repeats 40] [--block 8]
     [--draft eagle3 auto]

One engine for each arm in one process, all answering the same prompts, a block of steps each in turn, in an order that
turns too: a machine whose speed changes changes all arms alike. An arm's ratio is that of its block to the block of
`none` in the same turn, each told by its median step; the first step of a block finds cold caches and is not counted.
Where an engine's weights come to lie in memory is worth a percent or two, so all engines are built anew a few times.
`none` runs twice: what its second engine is told to cost is the noise. The absorb column is the launch in which a
drafter keeps what it will need, by the engine's own clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import track
from rich.table import Table

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine import Engine, build
from overdrive.policy.controller import FixedDrafts
from overdrive.types import Finish, FinishReason, SamplingParams

PROMPT = 64
ROOM = 2048  # tokens of each row
ABSORB = 3  # its place in Stats.launch_seconds


@dataclass
class Times:
    """steps: the median step of every block. absorbs: mean of every block's absorb launches. Seconds."""

    steps: list[float] = field(default_factory=list)
    absorbs: list[float] = field(default_factory=list)


@dataclass
class Arm:
    """An engine of one drafter, and the times of its blocks by rows."""

    name: str
    engine: Engine
    times: dict[int, Times]

    def begin(self, rows: int, new: int) -> None:
        """Answers of `new` tokens under way, prompts read."""
        params = SamplingParams(max_tokens=new, temperature=0.0)
        for row in range(rows):
            self.engine.submit(f"r{row}", range(1000 + row, 1000 + row + PROMPT), params)
        while self.engine.stats().generated < rows * 4:
            self.engine.advance()

    def block(self, steps: int, into: Times) -> None:
        before, times = self.engine.stats(), []
        for _ in range(steps):
            started = time.perf_counter()
            self.engine.advance()
            times.append(time.perf_counter() - started)
        after = self.engine.stats()
        into.steps.append(statistics.median(times[1:]))
        into.absorbs.append((after.launch_seconds[ABSORB] - before.launch_seconds[ABSORB]) / steps)

    def end(self) -> None:
        self.engine.abort_all(Finish(FinishReason.ABORT))
        while not self.engine.idle:
            self.engine.advance()


def open_arm(name: str, times: dict[int, Times], rows: int) -> Arm:
    """An engine of the drafter that the first word of `name` names."""
    options = EngineOptions(
        model=ModelOptions(max_model_len=ROOM),
        memory=MemoryOptions(kv_tokens=rows * ROOM, prefix_cache=False),
        scheduler=SchedulerOptions(max_rows=rows),
        draft=DraftOptions(draft=name.split()[0]),
    )
    return Arm(name, build("smollm2", options, lambda *_: None, FixedDrafts(0)), times)


def measure(arms: Sequence[Arm], rows: int, repeats: int, block: int) -> None:
    """Add to the arms' times for so many rows."""
    for arm in arms:
        arm.begin(rows, 64 + repeats * block)
    for turn in track(range(repeats), f"{rows} rows"):
        shift = turn % len(arms)
        for arm in (*arms[shift:], *arms[:shift]):
            arm.block(block, arm.times[rows])
    for arm in arms:
        arm.end()


def ratios(arm: Times, base: Times) -> tuple[float, float, float, float, float]:
    """Median, quartiles, and the median's 95 % interval by order statistics, of block by block ratios less one."""
    found = sorted(a / b - 1 for a, b in zip(arm.steps, base.steps, strict=True))
    low, middle, high = statistics.quantiles(found, n=4)
    reach = int(0.98 * len(found) ** 0.5)  # 1.96 sqrt(n) / 2 ranks
    centre = len(found) // 2
    return middle, low, high, found[max(0, centre - reach)], found[min(len(found) - 1, centre + reach)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--builds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=40, help="blocks of each build")
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--draft", nargs="+", default=["eagle3", "auto"])
    options = parser.parse_args()
    if PROMPT + 64 + options.repeats * options.block > ROOM:
        parser.error("answers of so many steps do not fit: lower --repeats or --block")
    times = {name: {rows: Times() for rows in options.rows} for name in ("none", "none again", *options.draft)}
    for _ in range(options.builds):
        arms = [open_arm(name, found, max(options.rows)) for name, found in times.items()]
        for rows in options.rows:
            measure(arms, rows, options.repeats, options.block)
        for arm in arms:
            arm.engine.close()
    show(times, options)


def show(times: dict[str, dict[int, Times]], options: argparse.Namespace) -> None:
    blocks = f"{options.builds} times {options.repeats} blocks of {options.block}"
    table = Table(title=f"steps at K = 0, {blocks}, over none")
    for name in ("rows", "drafter", "ms/step", "median", "95 % of it", "quartiles", "absorb, us", "of the step"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    for rows in options.rows:
        for name, found in times.items():
            base = times["none"][rows]
            step, absorb = statistics.median(found[rows].steps), statistics.median(found[rows].absorbs)
            middle, low, high, least, most = ratios(found[rows], base)
            told = (f"{middle:+.2%}", f"{least:+.2%} .. {most:+.2%}", f"{low:+.1%} .. {high:+.1%}")
            shown = told if found[rows] is not base else ("", "", "")
            table.add_row(str(rows), name, f"{1000 * step:.2f}", *shown, f"{1e6 * absorb:.1f}", f"{absorb / step:.2%}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
