"""Seconds over two axes, as measured and slowly corrected since. numpy only.

Knows numbers; must never know what they are the cost of.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import exp, inf, log

import numpy as np

RATE = 1 / 128
"""Share of a measured deviation that one step corrects, at least."""

MOST_EARLY = log(1.25)
"""The deviation that a point's first steps may correct at more than the usual rate; what is beyond has time."""

SHARED = 0.5
"""Of a cell's correction, what every cell of the grid takes: clocks and neighbours on the machine slow all sizes. All
others take the same, or those that no step teaches would drift: where sizes deviate one way and the other for good, as
no surface lies between its points quite as steps do, only equal shares add up to nothing.

Of an early one, which ends, near cells take more: the rest falls by half with every cell of distance."""

MOST_OFF = log(2)
"""A step that took more than twice or less than half what was expected counts as one that took that."""


class Surface:
    """Seconds over two rising axes: linear between measured points and beyond them, never falling along either axis.

    Where measured or corrected ones fall along an axis they are taken for scattered, and level out at their mean.

    Beyond an axis' end they go on as they rise over the whole axis where the other one is largest; before its
    beginning they stay. Plain lists: a handful of numbers is read every step.
    """

    def __init__(
        self, first: Sequence[float], second: Sequence[float], seconds: np.ndarray, worth: float = inf
    ) -> None:
        """first: [n] rising. second: [m] rising. seconds: [n, m]. worth: steps that a measured point stands for: the
        first ones behind it correct more where they are few. Raises ValueError where they do not fit together."""
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
        self._apart = self.measured  # with corrections, but for what all sizes took together
        self._worth = worth
        self._taught = np.zeros_like(self.measured)  # steps, by the point nearest to them
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

    def correct(self, first: float, second: float, ratio: float, steps: int) -> float:
        """Measured / expected seconds at a point were `ratio` in so many steps. Returns what of the correction, as a
        logarithm, is beyond the usual rate since hardly any steps taught that point before."""
        i, j = _nearest(self.first, first), _nearest(self.second, second)
        early = max(0.0, steps / (self._worth + self._taught[i, j] + steps) - RATE * steps) * _bounded(
            ratio, MOST_EARLY
        )
        usual = RATE * steps * _bounded(ratio)
        more = SHARED * usual + self._near(i, j) * early * self._new
        more[i, j] = usual + early
        self._apart = self._apart * np.exp(more)
        self._taught[i, j] += steps
        self._settle()
        return early

    def hint(self, first: float, second: float, early: float) -> None:
        """`correct` of another surface, at the same point, returned that: what no step has taught here goes along."""
        near = self._near(_nearest(self.first, first), _nearest(self.second, second))
        self._apart = self._apart * np.exp(SHARED * near * early * self._new)
        self._settle()

    @property
    def _new(self) -> np.ndarray:
        """[n, m], 1 where no step has taught anything, towards 0 where many have."""
        return 1 / (1 + self._taught / self._worth)

    def _near(self, i: int, j: int) -> np.ndarray:
        """[n, m], shares of an early correction of that point that all others take."""
        n, m = self.measured.shape
        return SHARED + (1 - SHARED) * 0.5 ** (np.abs(np.arange(n) - i)[:, None] + np.abs(np.arange(m) - j))

    def share(self, ratio: float, steps: int) -> None:
        """They were so on another surface: take the part that all sizes share. Costs next to nothing."""
        self._together *= exp(SHARED * RATE * steps * _bounded(ratio))

    @property
    def corrected(self) -> np.ndarray:
        """[n, m] seconds as they are read: measured, since corrected, rising."""
        return self._together * self._apart

    def _settle(self) -> None:
        """Make ready to be read. What falls is levelled for good: steps that deviate from a level one way here and the
        other way there would move what is behind it ever further, and nobody would see that."""
        grid = np.stack([rising(column) for column in self._apart.T], axis=1)
        if (grid[:, 1:] < grid[:, :-1]).any():  # what levels one axis keeps the order along the other
            grid = np.stack([rising(row) for row in grid])
        self._apart = grid
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


def _bounded(ratio: float, most: float = MOST_OFF) -> float:
    """Logarithm of it, within -most .. most."""
    return min(max(log(ratio), -most), most)


def _nearest(axis: Sequence[float], x: float) -> int:
    """Index of the point of a rising axis that is nearest to x."""
    high = min(bisect_left(axis, x), len(axis) - 1)
    return high - 1 if high and x - axis[high - 1] < axis[high] - x else high


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
