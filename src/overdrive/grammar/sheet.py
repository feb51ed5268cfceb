"""The masks of one step, on their way to the device. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class MaskSheet:
    """Memory of the device's side, written by the host. R rows of the step with Q = K + 1 positions each.

    bits: [M, ceil(V / 32)] int32, one mask a line. index: [R, Q] int64, the line of each position, -1 for what is free
    or cannot be reached. legal: [R] int64, how many of the row's drafts may be accepted. forced: [R, Q, B, F] int64,
    runs of what certainly follows where the newest token is drawn at that position and is a run's first; -1 beyond.
    """

    bits: NDArray[np.int32]
    index: NDArray[np.int64]
    legal: NDArray[np.int64]
    forced: NDArray[np.int64]

    @property
    def masked(self) -> bool:
        """Whether any row has a mask."""
        return len(self.bits) > 0

    def clear(self) -> None:
        """Nothing is masked, refused or forced."""
        self.index.fill(-1)
        self.legal.fill(self.index.shape[1] - 1)
        if self.forced.size:
            self.forced.fill(-1)


def blank_sheet(masked: int, rows: int, queries: int, words: int, forced: tuple[int, int]) -> MaskSheet:
    """A sheet in the host's own memory: lines for `masked` rows of `rows`; forced: runs of each position, and tokens of
    each run."""
    return MaskSheet(
        np.empty((masked * queries, words), np.int32),
        np.full((rows, queries), -1, np.int64),
        np.full(rows, queries - 1, np.int64),
        np.full((rows, queries, *forced), -1, np.int64),
    )


class SheetRoom:
    """Memory for one sheet at a time: the last one again where the next has its shape.

    On a device that is the host's own processor all that a step touches anew costs it time: the weights have driven it
    out of the caches.
    """

    def __init__(self, words: int) -> None:
        """words: of a mask."""
        self._words = words
        self._shape: tuple[int, int, int, tuple[int, int]] = (0, 0, 1, (0, 0))
        self._sheet = blank_sheet(0, 0, 1, words, (0, 0))

    def sheet(self, masked: int, rows: int, queries: int, forced: tuple[int, int]) -> MaskSheet:
        """A blank sheet as `blank_sheet` makes it; what was given out before is of no use any more."""
        shape = (masked, rows, queries, forced)
        if shape == self._shape:
            self._sheet.clear()
        else:
            self._shape, self._sheet = shape, blank_sheet(masked, rows, queries, self._words, forced)
        return self._sheet


NO_MASKS = blank_sheet(0, 0, 1, 0, (0, 0))
"""Of a step in which every row is free."""
