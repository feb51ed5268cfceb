"""How much faster one arm is than another, and whether the spread of the repeats allows saying so.

Turns of one repeat stand next to each other in time, so ratios are taken within repeats: a machine that is slow for a
while is slow for both. The interval is Student's t over the logarithms of these ratios.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.bench.figures import Figures, figures
from overdrive.bench.records import Measured, Results

# 97.5 % points of Student's t for 1, 2, 3 ... degrees of freedom (any statistical table); 1.96 beyond
T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)


@dataclass(frozen=True, slots=True)
class Ratio:
    """middle: geometric mean over `repeats`; low, high: its 95 % interval (0 and infinity for a single repeat)."""

    middle: float
    low: float
    high: float
    repeats: int

    @property
    def word(self) -> str:
        """'faster' or 'slower' where the whole interval says so, else 'unclear'."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "unclear"

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{self.middle:.3f}x (one repeat: no interval)"
        return f"{self.middle:.3f}x ({self.low:.3f} to {self.high:.3f})"


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """From (this arm's, the other's) figure of each repeat; None when no pair has two positive ones."""
    logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]
    if not logs:
        return None
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(middle), 0.0, math.inf, 1)
    t = T_975[len(logs) - 2] if len(logs) - 2 < len(T_975) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))


@dataclass(frozen=True, slots=True)
class Table:
    """The figures of all whole blocks by arm, load and repeat."""

    results: Results
    cells: dict[tuple[str, float], dict[int, Figures]]

    @property
    def arms(self) -> list[str]:
        """Arms that have a whole block, in the order they were given."""
        return [arm for arm in self.results.arms if any(name == arm for name, _ in self.cells)]

    @property
    def closed(self) -> bool:
        """Whether a constant number of users asked."""
        return is_closed(self.results)

    def at(self, arm: str, load: float) -> list[Figures]:
        """The repeats of one cell; empty when it was not measured."""
        return list(self.cells.get((arm, load), {}).values())

    def median(self, arm: str, load: float) -> float:
        """Output tokens/s, nan when not measured."""
        values = [one.tokens_per_s for one in self.at(arm, load)]
        return statistics.median(values) if values else math.nan

    def ratio(self, arm: str, other: str, load: float) -> Ratio | None:
        """Throughput of `arm` over that of `other`, repeat by repeat."""
        mine, theirs = self.cells.get((arm, load), {}), self.cells.get((other, load), {})
        shared = sorted(mine.keys() & theirs.keys())
        return ratio_of([(mine[repeat].tokens_per_s, theirs[repeat].tokens_per_s) for repeat in shared])

    def best(self, load: float, arms: Sequence[str]) -> str:
        """The arm with the highest median throughput there, "" when none was measured."""
        measured = [arm for arm in arms if self.at(arm, load)]
        return max(measured, key=lambda arm: self.median(arm, load), default="")


def is_closed(results: Results) -> bool:
    """Whether a constant number of users asked."""
    return results.run.get("mode") in ("sweep", "mixture")


def table(results: Results) -> Table:
    """The figures of every whole block."""
    cells: dict[tuple[str, float], dict[int, Figures]] = {}
    for block in results.blocks:
        cells.setdefault((block.arm, block.load), {})[block.repeat] = figures(block, is_closed(results))
    return Table(results, cells)


def first_block(results: Results, arm: str) -> Measured | None:
    """An arm's first whole block, to draw."""
    return next((block for block in results.blocks if block.arm == arm), None)
