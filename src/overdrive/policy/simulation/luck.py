"""Chance as a pure function of (seed, request, position), so that every controller meets the same requests and the same
tokens: runs differ by decisions alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

KINDS = 1 << 40
"""A position that no token has."""


def uniform(seed: int, request: ArrayLike, position: ArrayLike) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for each (request, position): a counter hash with the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):
        h = np.asarray(request, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        h = h + np.asarray(position, np.uint64) * np.uint64(0xD1B54A32D192ED03)
        h = h + np.uint64(seed + 1) * np.uint64(0x8CB92BA72F3D8DD7)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
    return (h >> np.uint64(11)).astype(np.float64) * 2.0**-53


def kind_of(seed: int, request: int, weights: Sequence[float]) -> int:
    """Which kind a request is; each is as likely as its weight."""
    return int(np.searchsorted(np.cumsum(weights)[:-1], uniform(seed, request, KINDS), side="right"))


def accepted(
    seed: int,
    requests: NDArray[np.int64],
    positions: NDArray[np.int64],
    drafts: NDArray[np.int64],
    rates: NDArray[np.float64],
) -> NDArray[np.int64]:
    """[rows] drafts that are right, counted from the first one to the first that is not.

    requests, positions: [rows] whose tokens, and where the first draft stands. drafts: [rows] how many there are.
    rates: [rows, >= max(drafts)] chance of each if those before it were right.
    """
    most = int(drafts.max(initial=0))
    j = np.arange(most)
    right = uniform(seed, requests[:, None], positions[:, None] + j) < rates[:, :most]  # [rows, most]
    return np.cumprod(right & (j < drafts[:, None]), axis=1).sum(axis=1)
