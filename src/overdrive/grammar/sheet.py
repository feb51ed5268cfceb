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
        self.index[:] = -1
        self.legal[:] = self.index.shape[1] - 1
        self.forced[:] = -1


def blank_sheet(masked: int, rows: int, queries: int, words: int, forced: tuple[int, int]) -> MaskSheet:
    """A sheet in the host's own memory: lines for `masked` rows of `rows`; forced: runs of each position, and tokens of
    each run."""
    return MaskSheet(
        np.empty((masked * queries, words), np.int32),
        np.full((rows, queries), -1, np.int64),
        np.full(rows, queries - 1, np.int64),
        np.full((rows, queries, *forced), -1, np.int64),
    )


NO_MASKS = blank_sheet(0, 0, 1, 0, (0, 0))
"""Of a step in which every row is free."""
