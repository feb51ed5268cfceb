"""What crosses between host and device: pinned rings, copied without waiting.

A ring has a place for every step that may be under way at once, and one more: the host fills a place again only when
the step that used it last has settled, which the loop sees to.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overdrive.grammar.sheet import MaskSheet
from overdrive.types import Step


class Ring:
    """`places` host buffers of `size` int64 elements each, pinned where there is a CUDA device to copy to."""

    def __init__(self, places: int, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._buffers = [torch.zeros(size, dtype=torch.int64, pin_memory=pinned) for _ in range(places)]
        self._arrays: list[NDArray[np.int64]] = [buffer.numpy() for buffer in self._buffers]
        self._turn = 0

    def turn(self) -> int:
        """The next place to use."""
        self._turn = (self._turn + 1) % len(self._buffers)
        return self._turn

    def array(self, place: int) -> NDArray[np.int64]:
        """What the host reads and writes."""
        return self._arrays[place]

    def upload(self, place: int, count: int, to: Tensor) -> None:
        """Enqueue a copy of the first `count` elements to the device."""
        to[:count].copy_(self._buffers[place][:count], non_blocking=True)

    def download(self, place: int, *sources: Tensor) -> None:
        """Enqueue copies of the device's `sources`, [n] int64 each, to the first elements, one behind the other."""
        at = 0
        for source in sources:
            self._buffers[place][at : at + len(source)].copy_(source, non_blocking=True)
            at += len(source)


class HostMasks:
    """A step's masks on the host: the memory of a `MaskSheet`, pinned where there is a CUDA device to copy to.

    What the allocator of pinned memory gets back, it gives out again only when copies from it are done.
    """

    def __init__(self, bits: Tensor, lines: Tensor, forced: Tensor, sheet: MaskSheet) -> None:
        """bits: [M, W] int32. lines: [R * Q + R] int64, index and legal. forced: [R, Q, B, F]. sheet: of all."""
        self._bits = bits
        self._lines = lines
        self._forced = forced
        self.sheet = sheet

    @classmethod
    def blank(cls, masks: int, words: int, rows: int, queries: int, forced: tuple[int, int], pinned: bool) -> HostMasks:
        """Room for so many masks, and for `forced` runs a position and tokens a run; all of R = `rows` are free."""
        bits = torch.empty((masks, words), dtype=torch.int32, pin_memory=pinned)
        lines = torch.empty(rows * queries + rows, dtype=torch.int64, pin_memory=pinned)
        index, legal = lines.numpy()[: rows * queries].reshape(rows, queries), lines.numpy()[rows * queries :]
        runs = torch.empty((rows, queries, *forced), dtype=torch.int64, pin_memory=pinned)
        sheet = MaskSheet(bits.numpy(), index, legal, runs.numpy())
        sheet.clear()
        return cls(bits, lines, runs, sheet)

    def upload(self, bits: Tensor, lines: Tensor, forced: Tensor) -> None:
        """Enqueue copies to the device: of the masks to the first of `bits`, and of the others, which are as many."""
        forced.copy_(self._forced, non_blocking=True)
        bits[: len(self._bits)].copy_(self._bits, non_blocking=True)
        lines.copy_(self._lines, non_blocking=True)


def describe(step: Step, array: NDArray[np.int64], rows: int, spare_slot: int) -> None:
    """Write a step's rows as `StepRows` holds them, padded to `rows` with rows of `spare_slot` that feed nothing."""
    table, count = array[: 4 * rows].reshape(4, rows), len(step.rows)
    table[:, :count] = np.array([(row.slot, row.known, row.drafts, row.emits) for row in step.rows], np.int64).T
    table[0, count:] = spare_slot
    table[1:, count:] = 0
