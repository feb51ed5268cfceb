"""What steps without prompts cost where every K and number of rows is a shape of its own. numpy only.

On a device that pads steps to shapes, tokens alone do not tell: eight drafts of one row attend, accept and roll back
otherwise than eight rows without drafts, and drafts attend to the context as well.
Knows no device and no table: whoever measured gives it grids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from overdrive.policy.surface import Surface

Grids = Mapping[int, np.ndarray]
"""By K: [rows of that K, positions] seconds."""


WORTH = 16.0
"""Steps that what was measured stands for. A device that has been busy for a while is slower than at the start, an H200
at 250 rows by 8 to 20 %, other Ks by other shares."""

LEAST_HINT = 0.002
"""Smaller ones are not worth the time that all surfaces take to be made anew."""


class DecodeCosts:
    """Two surfaces for each K, over rows and positions a row: seconds of drafting, and of everything else."""

    def __init__(
        self, positions: Sequence[float], rows: Mapping[int, Sequence[float]], drafting: Grids, rest: Grids
    ) -> None:
        """positions: rising, that a row attends to. rows: by K, rising. Raises ValueError for what does not fit."""
        self._positions = [float(each) for each in positions]
        self._rows = {k: [float(each) for each in found] for k, found in rows.items()}
        self._drafting = {k: Surface(self._rows[k], positions, grid, WORTH) for k, grid in drafting.items()}
        self._rest = {k: Surface(self._rows[k], positions, grid, WORTH) for k, grid in rest.items()}
        if self._drafting.keys() != self._rest.keys():
            raise ValueError("every K of a cost table needs both seconds of drafting and of the rest")

    def knows(self, k: int) -> bool:
        """Whether such steps were measured."""
        return k in self._rest

    def drafting(self, k: int, rows: int, positions: float) -> float:
        """Seconds of drafting in a step of so many rows at so many positions each, on average."""
        return _read(self._drafting[k], rows, positions)

    def rest(self, k: int, rows: int, positions: float) -> float:
        """Seconds of everything else in it."""
        return _read(self._rest[k], rows, positions)

    def correct_drafting(self, k: int, rows: int, positions: float, ratio: float, steps: int) -> None:
        """Measured / expected seconds were `ratio` in so many steps. Other Ks take the part that all sizes share."""
        _correct(self._drafting, k, rows, positions, ratio, steps)

    def correct_rest(self, k: int, rows: int, positions: float, ratio: float, steps: int) -> None:
        """The same of everything else."""
        _correct(self._rest, k, rows, positions, ratio, steps)

    def to_dict(self, corrected: bool = False) -> dict[str, Any]:
        """As JSON can hold it; as measured, or as corrected by now."""

        def grids(surfaces: Mapping[int, Surface]) -> dict[str, Any]:
            return {str(k): (s.corrected if corrected else s.measured).tolist() for k, s in surfaces.items()}

        rows = {str(k): found for k, found in self._rows.items()}
        return {
            "positions": self._positions,
            "rows": rows,
            "drafting": grids(self._drafting),
            "rest": grids(self._rest),
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> DecodeCosts:
        """What `to_dict` wrote. Raises KeyError, TypeError, ValueError or AttributeError where it is damaged."""
        drafting, rest = (
            {int(k): np.asarray(grid, np.float64) for k, grid in stored[name].items()} for name in ("drafting", "rest")
        )
        return DecodeCosts(stored["positions"], {int(k): rows for k, rows in stored["rows"].items()}, drafting, rest)


def _read(surface: Surface, rows: int, positions: float) -> float:
    """Seconds at a point. Beyond the most rows that were measured they go on as they rise from half of those."""
    most = surface.first[-1]
    if rows <= most:
        return surface.at(rows, positions)
    last, half = surface.at(most, positions), surface.at(most / 2, positions)
    return last + (rows - most) * (last - half) / (most / 2)


def _correct(surfaces: Mapping[int, Surface], k: int, rows: int, positions: float, ratio: float, steps: int) -> None:
    early = surfaces[k].correct(rows, positions, ratio, steps)
    for other, surface in surfaces.items():
        if other != k:
            surface.share(ratio, steps)
            if abs(early) > LEAST_HINT:
                surface.hint(rows, positions, early)
