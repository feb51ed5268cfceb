"""What a step costs: seconds by its tokens, its context and its drafts, as measured on this machine. numpy only.

Knows no device: whoever measures gives it grids, and a stored one of another machine is refused by its key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from typing import Any

import numpy as np

from overdrive.errors import OverdriveError

RATE = 1 / 128
"""Share of a measured deviation that one step corrects."""

MASK_RATE = 1 / 64
BETWEEN_RATE = 1 / 16
"""The same of the host's time, for masks and between two steps, which follows the load."""

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
        if any(later <= earlier for axis in (self.first, self.second) for earlier, later in pairwise(axis)):
            raise ValueError("the sizes of a cost table must rise")
        if not (np.isfinite(self.measured) & (self.measured >= 0)).all():
            raise ValueError("costs must be finite and not negative")
        self._log = np.zeros_like(self.measured)  # of the corrections
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
        return low + share * (high - low) + max(0.0, first - self.first[-1]) * self._first_slope

    def correct(self, first: float, second: float, ratio: float, steps: int) -> None:
        """Measured / expected seconds at a point were `ratio` in so many steps."""
        i, j = (min(bisect_left(axis, x), len(axis) - 1) for axis, x in ((self.first, first), (self.second, second)))
        n, m = self.measured.shape
        distance = np.abs(np.arange(n) - i)[:, None] + np.abs(np.arange(m) - j)
        step = RATE * steps * min(max(log(ratio), -MOST_OFF), MOST_OFF)
        self._log += step * (SHARED + (1 - SHARED) * 0.5**distance)
        self._settle()

    @property
    def corrected(self) -> np.ndarray:
        """[n, m] seconds, measured and since corrected."""
        return self.measured * np.exp(self._log)

    def _settle(self) -> None:
        """Make ready to be read."""
        grid = np.maximum.accumulate(np.stack([rising(column) for column in self.corrected.T], axis=1), axis=1)
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


class CostTable:
    """Two measured grids and the slow corrections learnt while serving.

    step_tokens: [n] rising, tokens fed. contexts: [c] rising, positions that all rows together attend to.
    step_seconds: [n, c], everything but drafting: forward, sampling, accept, absorb.
    draft_rows: [r] rising. draft_ks: [k] rising, from 1. draft_seconds: [k, r], drafting K tokens for each row.
    row_sizes: by K, rising, numbers of rows that steps without prompts are padded to, each row with all K drafts. Empty
    for a device that feeds what rows have and no more.
    padded_to: token counts up to it run as the next measured one (graphs); larger ones, and rows, are interpolated. 0
    for a device that runs every size as it is.
    mask_seconds: of host time for one grammar mask, which a constrained row needs for its own token and for each of its
    drafts; 0 until one has been timed. overlapped: masks are built while the step runs, not when it is done.
    """

    def __init__(
        self,
        step_tokens: Sequence[float],
        contexts: Sequence[float],
        step_seconds: np.ndarray,
        draft_rows: Sequence[float],
        draft_ks: Sequence[float],
        draft_seconds: np.ndarray,
        row_sizes: Mapping[int, Sequence[int]] | None = None,
        padded_to: int = 0,
        mask_seconds: float = 0.0,
        overlapped: bool = True,
    ) -> None:
        """Raises ValueError for grids that do not fit together."""
        self.steps = Surface(step_tokens, contexts, step_seconds)
        self.mask_seconds = mask_seconds
        self.overlapped = overlapped
        self.between = 0.0  # seconds of host time that lately came on top of every step, whatever it fed
        self._mask = mask_seconds
        if len(draft_ks) and draft_ks[0] < 1:
            raise ValueError("drafting nothing costs nothing: the drafts of a cost table begin at 1")
        by_k = np.asarray(draft_seconds, np.float64)
        none = np.zeros((1, len(draft_rows)))
        self.drafts = Surface([0, *draft_ks], draft_rows, np.concatenate([none, by_k]) if by_k.size else none)
        self._drafting: dict[tuple[int, int], float] = {}  # by K and rows, until corrected: asked for in every step
        self.row_sizes = {int(k): tuple(sizes) for k, sizes in (row_sizes or {}).items()}
        self.padded_to = padded_to
        sizes = self.steps.first
        # A size on the way to the next measured one costs what that one costs: monotone also where padding ends.
        self._last_padded = sizes[min(bisect_left(sizes, padded_to), len(sizes) - 1)] if padded_to else 0

    def fed(self, rows: int, k: int, asked: int, prefill: int) -> int:
        """Tokens that a step runs with: `rows` with at most k drafts each, `asked` in all, beside prompts.

        prefill: known tokens of prompts; rows of such steps are not padded.
        """
        if not self.row_sizes or prefill:
            return rows + asked + prefill
        return self._padded_rows(k, rows) * (1 + k)

    def step(self, tokens: int, context: int) -> float:
        """Seconds of a step that feeds so many tokens, drafting left out. Never falls with tokens or context."""
        if tokens <= self._last_padded:
            return self.steps.at(self.steps.first[bisect_left(self.steps.first, tokens)], context)
        return self.steps.at(tokens, context)

    def draft(self, k: int, rows: int) -> float:
        """Seconds that drafting takes, 0 for K = 0. Never falls with K or rows."""
        if not k:
            return 0.0
        found = self._drafting.get((k, rows))
        if found is None:
            found = self._drafting[k, rows] = self.drafts.at(k, self._padded_rows(k, rows))
        return found

    def catch_up(self, tokens: int) -> float:
        """Seconds to catch up on so many missed tokens, all rows together: a guess, as drafting grows with rows."""
        if not tokens:
            return 0.0
        few, many = self.drafts.second[0], self.drafts.second[-1]
        if many > few:
            return tokens * (self.drafts.at(1, many) - self.drafts.at(1, few)) / (many - few)
        return tokens * self.drafts.at(1, few) / max(few, 1.0)

    def waiting(self, masks: int, step: float) -> float:
        """Seconds that a step of `step` seconds waits for so many masks, built while it runs or behind it."""
        return max(0.0, masks * self._mask - (step if self.overlapped else 0.0))

    def correct(self, tokens: int, context: int, seconds: float, steps: int = 1) -> None:
        """So many steps without prompts took so long each: their cell is corrected slowly, its neighbours and the rest
        less."""
        expected = self.step(tokens, context)
        if seconds > 0 and expected > 0:
            self.steps.correct(tokens, context, seconds / expected, steps)

    def correct_draft(self, k: int, rows: int, seconds: float, steps: int = 1) -> None:
        """Drafting without anything to catch up took so long, in so many steps each."""
        expected = self.draft(k, rows)
        if seconds > 0 and expected > 0:
            self.drafts.correct(k, self._padded_rows(k, rows), seconds / expected, steps)
            self._drafting.clear()

    def correct_between(self, seconds: float) -> None:
        """The host took so long between two steps."""
        self.between += BETWEEN_RATE * (seconds - self.between)

    def correct_masks(self, masks: int, seconds: float) -> None:
        """Building so many masks took so long."""
        if masks and seconds > 0:
            found = seconds / masks
            self._mask += MASK_RATE * (found - self._mask) if self._mask else found

    def as_run(self, row_sizes: Mapping[int, Sequence[int]], overlapped: bool) -> CostTable:
        """The same costs, uncorrected, where steps are padded and overlapped so."""
        rows = {str(k): list(sizes) for k, sizes in row_sizes.items()}
        return CostTable.from_dict(self.to_dict({}) | {"row_sizes": rows, "overlapped": overlapped}, {})

    def to_dict(self, key: dict[str, Any]) -> dict[str, Any]:
        """As JSON can hold it, without corrections. key: model, device, versions, threads: what costs depend on."""
        return {
            "key": dict(key),
            "step_tokens": self.steps.first,
            "contexts": self.steps.second,
            "step_seconds": self.steps.measured.tolist(),
            "draft_rows": self.drafts.second,
            "draft_ks": self.drafts.first[1:],
            "draft_seconds": self.drafts.measured[1:].tolist(),
            "row_sizes": {str(k): list(sizes) for k, sizes in self.row_sizes.items()},
            "padded_to": self.padded_to,
            "mask_seconds": self.mask_seconds,
            "overlapped": self.overlapped,
        }

    def corrected(self) -> dict[str, list[list[float]]]:
        """The seconds of `to_dict` as they are corrected by now, with what the host adds to every step."""
        steps, drafts = self.steps.corrected + self.between, self.drafts.corrected[1:]
        return {"step_seconds": steps.tolist(), "draft_seconds": drafts.tolist()}

    @staticmethod
    def from_dict(stored: dict[str, Any], key: dict[str, Any]) -> CostTable:
        """The table that was stored. Raises OverdriveError, naming what differs, where it was measured elsewhere."""
        found = stored.get("key")
        if not isinstance(found, dict):
            raise OverdriveError("the stored cost table does not say where it was measured")
        for name in sorted({*found, *key}):
            if found.get(name) != key.get(name):
                raise OverdriveError(
                    f"the stored cost table was measured elsewhere: its {name} is {found.get(name)!r}, "
                    f"here it is {key.get(name)!r}"
                )
        try:
            return CostTable(**{name: value for name, value in stored.items() if name != "key"})
        except (TypeError, ValueError, AttributeError) as error:
            raise OverdriveError(f"the stored cost table is damaged: {error}") from None

    def _padded_rows(self, k: int, rows: int) -> int:
        sizes = self.row_sizes.get(k, ())
        index = bisect_left(sizes, rows)
        return sizes[index] if index < len(sizes) else rows
