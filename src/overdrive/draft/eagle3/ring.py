"""The target features that a draft network has still to read: kept at every step, so that drafting may stop and resume.

Two places. A ring holds the taps of each slot's newest positions. Beside every page stand the taps of its last
position: the first pair after a prefix-cache hit needs them, and the target computes only what follows the hit.
Writing here is all that a step without drafts costs.
"""

from __future__ import annotations

import ctypes
import struct

import numba
import numpy as np
import torch
from numba import cfunc
from numba.core.ccallback import CFunc
from numpy.typing import NDArray
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cpu.copies import copy_bytes
from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.memory import load_int, load_int32, load_ints
from overdrive.device.cpu.team import Native
from overdrive.device.state import SlotState
from overdrive.draft.base import Fed

_FIXED, _OF_STEP = struct.Struct("8q"), struct.Struct("6q")


class TapRing:
    """taps: [slots, window, width], position p of a slot at p % window. page_taps: [n_pages, width]. On the CPU.

    width: values of a position, all taps side by side. window: positions kept of each slot.
    """

    def __init__(self, state: SlotState, window: int, n_pages: int, width: int, dtype: torch.dtype) -> None:
        self.window = window
        # Claimed but not touched: a slot or page costs memory from its first use on.
        self.taps = _untouched((len(state.lengths), window, width), dtype)
        self.page_taps = _untouched((n_pages, width), dtype)
        self._rings = self.taps.numpy()
        self._table, self._computed = state.page_table, state.computed  # the kernel reads them where they stand
        self._keep = Native(keep_kernel())
        self._arguments = ctypes.create_string_buffer(_FIXED.size + _OF_STEP.size)
        self._address = ctypes.addressof(self._arguments)
        line = width * dtype.itemsize
        _FIXED.pack_into(
            self._arguments, 0,
            self.taps.data_ptr(), self.page_taps.data_ptr(), self._table.data_ptr(), 4 * self._table.stride(0),
            self._computed.data_ptr(), window, line, state.page_size,
        )  # fmt: skip
        none = np.zeros(0, np.int64)  # compiles here, not under the first request
        _gather(self._rings, none, none, none, np.zeros((0, 1), self._rings.dtype))

    @staticmethod
    def bytes_of(slots: int, window: int, n_pages: int, width: int, itemsize: int) -> int:
        """Memory that a ring of this size may come to use."""
        return (slots * window + n_pages) * width * itemsize

    def keep(self, fed: Fed) -> None:
        """Take the taps of the positions that stand, the last of which is now the slot's `computed - 1`.

        Every step pays for this, drafted for or not, and finds its code gone from the caches since the last: it is one
        native call with addresses: arrays made of the tensors would cost more than the copies.
        """
        taps, slots = fed.taps, fed.slots
        _OF_STEP.pack_into(
            self._arguments, _FIXED.size,
            taps.data_ptr(), fed.batch.offsets.data_ptr(), slots.data_ptr(), fed.known.data_ptr(),
            fed.counts.data_ptr(), len(slots),
        )  # fmt: skip
        self._keep(self._address)

    def gather(self, batch: Batch, slots: NDArray[np.int64]) -> Tensor:
        """Taps of the pairs at the batch's places, [T, width]: those of the position before each place.

        slots: of the batch's rows.
        """
        out = torch.empty((len(batch.ids), self.taps.shape[2]), dtype=self.taps.dtype)
        _gather(self._rings, slots, batch.rows.numpy(), batch.positions.numpy(), out.numpy())
        return out

    def restore(self, slot: int, position: int, page: int) -> None:
        """The taps of a slot's `position`, the last one of `page`, from beside that page."""
        self.taps[slot, position % self.window] = self.page_taps[page]


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.zeros(int(np.prod(shape)) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def keep_kernel() -> CFunc:
    """Kernel of one address: the words that `TapRing` lays out."""
    source = SOURCE

    @cfunc("void(int64)", cache=True, error_model="numpy")
    def kernel(a):
        source  # noqa: B018  (makes the source part of the cache key)
        ring, beside, table, table_line, computed, window, line, size = load_ints(a, 8)
        taps, offsets, slots, known, counts, rows = load_ints(a + 64, 6)
        for row in range(rows):
            slot = load_int(slots + 8 * row)
            stands = load_int(known + 8 * row) + max(load_int(counts + 8 * row) - 1, 0)
            first, position = load_int(offsets + 8 * row), load_int(computed + 8 * slot) - stands
            for token in range(stands):
                tap, at = taps + (first + token) * line, position + token
                if token >= stands - window:
                    copy_bytes(tap, ring + (slot * window + at % window) * line, line)
                if (at + 1) % size == 0:
                    page = load_int32(table + slot * table_line + at // size * 4)
                    copy_bytes(tap, beside + page * line, line)

    return kernel


@numba.njit(cache=True, nogil=True)
def _gather(ring, slots, rows, places, out):
    for token in range(len(places)):
        out[token] = ring[slots[rows[token]], (places[token] - 1) % ring.shape[1]]
