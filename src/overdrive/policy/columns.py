"""A step's rows as arrays, a field of all of them in each. Host-side; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from overdrive.types import Row

_SLOT, _DRAFTS, _UPPER_LEN = (attrgetter(name) for name in ("slot", "drafts", "upper_len"))


def slots(rows: Sequence[Row]) -> np.ndarray:
    """[rows] int64."""
    return _column(rows, _SLOT)


def drafts(rows: Sequence[Row]) -> np.ndarray:
    """[rows] int64, reserved for each."""
    return _column(rows, _DRAFTS)


def upper_lens(rows: Sequence[Row]) -> np.ndarray:
    """[rows] int64, as `Row.upper_len`."""
    return _column(rows, _UPPER_LEN)


def any_drafts(rows: Sequence[Row]) -> bool:
    """Whether any row has some."""
    return any(map(_DRAFTS, rows))


def _column(rows: Sequence[Row], field: attrgetter) -> np.ndarray:
    return np.fromiter(map(field, rows), np.int64, len(rows))
