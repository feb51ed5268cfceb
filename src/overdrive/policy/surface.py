"""Seconds over two axes, as measured and slowly corrected since. numpy only.

Knows numbers; must never know what they are the cost of.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import exp, log

import numpy as np

RATE = 1 / 128
"""Share of a measured deviation that one step corrects."""

SHARED = 0.5
"""Of a cell's correction, what every cell of the grid takes: clocks and neighbours on the machine slow all sizes. The
rest falls by half with every cell of distance."""

MOST_OFF = log(2)
"""A step that took more than twice or less than half what was expected counts as one that took that."""


class Surface:
    """Seconds over two rising axes: linear between measured points and beyond them, never falling along either axis.

    Where measured ones fall along the first axis they are taken for scattered, and level out at their mean.

    Beyond an axis' end they go on as they rise over the whole axis where the other one is largest; before its
    beginning they stay. Plain lists: a handful of numbers is read every step.
    """

    def __init__(self, first: Sequence[float], second: Sequence[float], seconds: np.ndarray) -> None:
        """first: [n] rising. second: [m] rising. seconds: [n, m]. Raises ValueError where they do not fit together."""
        self.first = np.asarray(first, np.float64).tolist()
        self.second = np.asarray(second, np.float64).tolist()
        self.measured = np.asarray(seconds, np.float64)
        n, m = len(self.first), len(self.second)
        if self.measured.shape != (n, m) or not n * m:
            raise ValueError(f"{self.measured.shape} costs of {n} x {m} sizes")
        if not np.isfinite([*self.first, *self.second]).all():
            raise ValueError("the sizes of a cost table must be finite")
        if any(later <= earlier for axis in (self.first, self.second) for earlier, later in pairwise(axis)):
            raise ValueError("the sizes of a cost table must rise")
        if not (np.isfinite(self.measured) & (self.measured >= 0)).all():
            raise ValueError("costs must be finite and not negative")
        self._log = np.zeros_like(self.measured)  # of the corrections, but for what all sizes took together
        self._together = 1.0
        self._columns: list[list[float]] = []
        self._column: list[float] = []
        self._column_of = self.second[0]
        self._settle()

    def at(self, first: float, second: float) -> float:
        """Seconds at a point."""
        if second != self._column_of:
            self._column_of, self._column = second, self._read(second)
        i, share = _place(self.first, first)
        low, high = self._column[i], self._column[min(i + 1, len(self._column) - 1)]
        beyond = max(0.0, first - self.first[-1]) * self._first_slope
        return self._together * (low + share * (high - low) + beyond)

    def correct(self, first: float, second: float, ratio: float, steps: int) -> None:
        """Measured / expected seconds at a point were `ratio` in so many steps."""
        i, j = (min(bisect_left(axis, x), len(axis) - 1) for axis, x in ((self.first, first), (self.second, second)))
        n, m = self.measured.shape
        distance = np.abs(np.arange(n) - i)[:, None] + np.abs(np.arange(m) - j)
        self._log += _deviation(ratio, steps) * (SHARED + (1 - SHARED) * 0.5**distance)
        self._settle()

    def share(self, ratio: float, steps: int) -> None:
        """They were so on another surface: take the part that all sizes share. Costs next to nothing."""
        self._together *= exp(SHARED * _deviation(ratio, steps))

    @property
    def corrected(self) -> np.ndarray:
        """[n, m] seconds, measured and since corrected."""
        return self._together * self.measured * np.exp(self._log)

    def _settle(self) -> None:
        """Make ready to be read."""
        apart = self.measured * np.exp(self._log)
        grid = np.maximum.accumulate(np.stack([rising(column) for column in apart.T], axis=1), axis=1)
        self._columns = grid.T.tolist()
        self._first_slope = float(grid[-1, -1] - grid[0, -1]) / max(self.first[-1] - self.first[0], 1e-9)
        self._second_slope = float(grid[-1, -1] - grid[-1, 0]) / max(self.second[-1] - self.second[0], 1e-9)
        self._column_of = self.second[0]
        self._column = self._columns[0]

    def _read(self, second: float) -> list[float]:
        """[n] seconds at every measured point of the first axis."""
        j, share = _place(self.second, second)
        high = self._columns[min(j + 1, len(self._columns) - 1)]
        beyond = max(0.0, second - self.second[-1]) * self._second_slope
        return [a + share * (b - a) + beyond for a, b in zip(self._columns[j], high, strict=True)]


def _deviation(ratio: float, steps: int) -> float:
    """Logarithm of what so many steps correct."""
    return RATE * steps * min(max(log(ratio), -MOST_OFF), MOST_OFF)


def rising(values: np.ndarray) -> np.ndarray:
    """[n], the nearest sequence (least squares) that never falls: runs that do become their mean.

    Pool adjacent violators; Barlow et al., Statistical Inference under Order Restrictions, 1972.
    """
    if (values[1:] >= values[:-1]).all():
        return values
    runs: list[tuple[float, int]] = []  # mean and length
    for value in values.tolist():
        mean, length = value, 1
        while runs and runs[-1][0] > mean:
            before, count = runs.pop()
            mean, length = (before * count + mean * length) / (count + length), count + length
        runs.append((mean, length))
    return np.repeat([mean for mean, _ in runs], [length for _, length in runs])


def _place(axis: Sequence[float], x: float) -> tuple[int, float]:
    """The point at or before x and the share of the way to the next one; the ends of the axis for what is outside."""
    high = bisect_left(axis, x)
    if high == len(axis):
        return high - 1, 0.0
    if high == 0:
        return 0, 0.0
    return high - 1, (x - axis[high - 1]) / (axis[high] - axis[high - 1])
