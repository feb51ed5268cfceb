"""The target features that a draft network has still to read: kept at every step, so that drafting may stop and resume.

Two places. A ring holds the taps of each slot's newest positions. Beside every page stand the taps of its last
position: the first pair after a prefix-cache hit needs them, and the target computes only what follows the hit.
Writing here is all that a step without drafts costs.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.draft.base import Fed


class TapRing:
    """taps: [slots, window, width], position p of a slot at p % window. page_taps: [n_pages, width]. On the CPU.

    width: values of a position, all taps side by side. window: positions kept of each slot.
    """

    def __init__(self, slots: int, window: int, n_pages: int, page_size: int, width: int, dtype: torch.dtype) -> None:
        self.window = window
        self._page_size = page_size
        # Claimed but not touched: a slot or page costs memory from its first use on.
        self.taps = _untouched((slots, window, width), dtype)
        self.page_taps = _untouched((n_pages, width), dtype)
        self._rings, self._beside = self.taps.numpy(), self.page_taps.numpy()
        self._compile()

    @staticmethod
    def bytes_of(slots: int, window: int, n_pages: int, width: int, itemsize: int) -> int:
        """Memory that a ring of this size may come to use."""
        return (slots * window + n_pages) * width * itemsize

    def keep(self, fed: Fed, table: NDArray[np.int32], computed: NDArray[np.int64]) -> None:
        """Take the taps of the positions that stand, the last of which is `computed[slot] - 1`.

        table: [slots, W], the page table. computed: [slots], as it is after the step. Every step pays for this, drafted
        for or not: no tensor is asked for that another one tells of.
        """
        _keep(
            self._rings,
            self._beside,
            fed.taps.numpy(),
            fed.batch.offsets.numpy(),
            table,
            computed,
            fed.slots.numpy(),
            fed.known.numpy(),
            fed.counts.numpy(),
            self._page_size,
        )

    def gather(self, batch: Batch, slots: NDArray[np.int64]) -> Tensor:
        """Taps of the pairs at the batch's places, [T, width]: those of the position before each place.

        slots: of the batch's rows.
        """
        out = torch.empty((len(batch.ids), self.taps.shape[2]), dtype=self.taps.dtype)
        _gather(self._rings, slots, batch.rows.numpy(), batch.positions.numpy(), out.numpy())
        return out

    def _compile(self) -> None:
        """Here, and not under the first request."""
        none, table = np.zeros(0, np.int64), np.zeros((1, 1), np.int32)
        taps = np.zeros((0, 1), self._rings.dtype)
        _keep(self._rings, self._beside, taps, none, table, none, none, none, none, self._page_size)
        _gather(self._rings, none, none, none, taps)

    def restore(self, slot: int, position: int, page: int) -> None:
        """The taps of a slot's `position`, the last one of `page`, from beside that page."""
        self.taps[slot, position % self.window] = self.page_taps[page]


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.zeros(int(np.prod(shape)) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


@numba.njit(cache=True, nogil=True)
def _keep(ring, page_taps, taps, offsets, table, computed, slots, known, counts, size):
    window = ring.shape[1]
    for row in range(len(slots)):
        slot, begin = slots[row], offsets[row]
        stands = known[row] + max(counts[row] - 1, 0)
        for token in range(begin, begin + stands):
            position = computed[slot] - stands + token - begin
            if token >= begin + stands - window:
                ring[slot, position % window] = taps[token]
            if (position + 1) % size == 0:
                page_taps[table[slot, position // size]] = taps[token]


@numba.njit(cache=True, nogil=True)
def _gather(ring, slots, rows, places, out):
    for token in range(len(places)):
        out[token] = ring[slots[rows[token]], (places[token] - 1) % ring.shape[1]]
