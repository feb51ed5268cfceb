"""Masks of many rows at once, by threads of the library's own, which do not wait for the interpreter.

Knows llguidance's executor; never constraints, nor what a mask is for. It has no limit for one row beside the library's
for every mask, about 20 ms, so who calls it looks at how long all took.
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance
import numpy as np
from numpy.typing import NDArray

Place = tuple[llguidance.LLMatcher, int]
"""A matcher, and the line that its mask belongs to."""


class Together:
    """Fills lines of a sheet. One caller at a time."""

    def __init__(self, threads: int) -> None:
        self._executor = llguidance.LLExecutor(threads)

    def fill(self, places: Sequence[Place], bits: NDArray[np.int32]) -> None:
        """Write masks to lines of bits, [M, W], contiguous. A matcher that fails is left in its state of error."""
        self._executor.unsafe_compute_mask_ptr(list(places), bits.ctypes.data, bits.strides[0], len(bits))
