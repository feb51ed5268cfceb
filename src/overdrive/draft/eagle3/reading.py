"""What a head has read of each slot, and what of it was lost to the slot: one gap at most.

    place    0 | 1 ......... | gap[0] ......... gap[1] - 1 | gap[1] ........... stop - 1 | stop ...
                 seen          never read, or lost           seen                          not read yet

What was read before a gap stays in view: a head that is shown the newest pairs alone misses the text's first ones
(attention sinks; Xiao et al. 2023). Where a second piece is missing the gap grows over what lies between. Knows places;
never pages, tokens or the network.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FIRST = 1
"""The lowest place in use."""

Ints = NDArray[np.int64]


class Reading:
    """gaps: [slots, 2] int64, `Batch.gaps` of each slot. stops: [slots] int64, the place of the next pair to read.

    A gap never ends behind its slot's stop.
    """

    def __init__(self, slots: int) -> None:
        self.gaps = np.zeros((slots, 2), np.int64)
        self.stops = np.full(slots, FIRST, np.int64)

    def begin(self, slot: int, front: int, back: int, stop: int) -> None:
        """A new text whose places up to `front - 1` and from `back` to `stop - 1` were read by others."""
        self.gaps[slot] = (front, back) if front < back else (0, 0)
        self.stops[slot] = max(FIRST, stop)

    def lose(self, slot: int, begin: int, end: int) -> None:
        """Places `begin .. end - 1` of a slot, which had come at least to `begin`, are not to be seen any more."""
        gap, gap_end = self.gaps[slot]
        self.gaps[slot] = (min(gap, begin) if gap_end else begin), max(gap_end, end)
        self.stops[slot] = max(self.stops[slot], end)

    def skip_lost(self, slots: Ints, oldest: Ints) -> None:
        """Places before `oldest[r]` can no more be read: what `slots[r]` has not read of them is lost. [R] each."""
        lost = self.stops[slots] < oldest
        for slot, end in zip(slots[lost], oldest[lost], strict=True):
            self.lose(slot, self.stops[slot], end)

    def stands(self, slot: int, begin: int, end: int) -> bool:
        """Whether all places `begin .. end - 1` were read and are seen."""
        gap, gap_end = self.gaps[slot]
        return bool(self.stops[slot] >= end and (gap_end <= begin or end <= gap))
