"""Which pages hold a draft network's own keys and values beside the target's.

A draft network stores what it computes in layers of its own, in the target's pages: place q of a slot is place q of its
page table for both. The target's part of a page that comes out of the prefix cache always stands; the network's may
not, because nobody drafted while the page was written. One flag a page tells. Knows page numbers and places, nothing
of what a network computes.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from overdrive.types import PageEntry


class PageMarks:
    """written: [n_pages] uint8, 1 where the network's part of the whole page stands.

    owners: [n_pages] int64, how often the page was given out anew: what lay in it for an earlier owner is lost.
    """

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.written = np.zeros(n_pages, np.uint8)
        self.owners = np.zeros(n_pages, np.int64)
        nobody = np.zeros(0, np.int64)
        self.mark(np.zeros((1, 1), np.int32), nobody, nobody, nobody, nobody)  # compiles here, not under a request

    def enter(self, entry: PageEntry) -> None:
        """Pages given out anew hold nothing of their next owner's."""
        if not entry.shared:
            self.written[list(entry.pages)] = 0
            self.owners[list(entry.pages)] += 1

    def leading(self, pages: NDArray[np.int32]) -> int:
        """How many of these pages stand, from the first on without a gap."""
        gaps = np.flatnonzero(self.written[pages] == 0)
        return int(gaps[0]) if len(gaps) else len(pages)

    def trailing(self, pages: NDArray[np.int32]) -> int:
        """How many of these pages stand, back from the last one without a gap."""
        return self.leading(pages[::-1])

    def mark(
        self,
        table: NDArray[np.int32],
        slots: NDArray[np.int64],
        since: NDArray[np.int64],
        begins: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> None:
        """Places `since[r] .. begins[r] - 1` of `slots[r]` stood, those up to `stops[r]` now do: mark full pages.

        table: [slots, W], the page table.
        """
        _mark(self.written, table, slots, since, begins, stops, self.page_size)


@numba.njit(cache=True, nogil=True)
def _mark(written, table, slots, since, begins, stops, size):
    for row in range(len(slots)):
        whole = (since[row] + size - 1) // size
        for column in range(max(whole, begins[row] // size), stops[row] // size):
            written[table[slots[row], column]] = 1
