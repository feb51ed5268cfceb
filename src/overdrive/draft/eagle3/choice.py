"""An EAGLE-3 head with what it will need of a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.draft.eagle3.drafter import EagleDrafter, HeadPasses
from overdrive.draft.eagle3.network import EagleHead, HeadScored
from overdrive.draft.eagle3.padded import PaddedEagleDrafter
from overdrive.draft.eagle3.ring import TapRing
from overdrive.draft.padded import PaddedRoom
from overdrive.draft.room import Room
from overdrive.model.ops import Attention, Stores


def least_window(chunk: int) -> int:
    """Positions to keep so that a prompt in chunks of so many tokens is read without gaps.

    A chunk is read once it is kept, up to the pair before its last, which waits for the next chunk.
    """
    return chunk + 1


@dataclass(frozen=True, slots=True)
class EagleChoice:
    """A loaded head. window: newest positions of a slot whose taps are kept."""

    head: EagleHead
    folder: Path
    window: int
    dtype: torch.dtype

    name = "eagle3"

    @property
    def model(self) -> str:
        return str(self.folder)

    def page_bytes(self, page_size: int) -> int:
        """The head's keys and values, and the taps of the page's last position."""
        config = self.head.config
        kv = 2 * config.layers * config.kv_heads * config.head_dim * page_size
        return (kv + self._width) * self.dtype.itemsize

    def slot_bytes(self) -> int:
        """The ring of taps, and those of one position beside it."""
        return (self.window + 1) * self._width * self.dtype.itemsize

    def open(self, room: Room) -> EagleDrafter:
        config, head = self.head.config, self.head
        kv = PagedKV.allocate(config, room.n_pages, room.state.page_size, self.dtype)

        def read(batch: Batch, attention: Attention, taps: Tensor) -> HeadScored:
            return head.score(batch, head.fuse(taps), attention)

        def feed(batch: Batch, attention: Attention, feedback: Tensor) -> HeadScored:
            return head.score(batch, feedback, attention)

        def store(batch: Batch, attention: Stores, taps: Tensor) -> tuple[Tensor, Tensor]:
            k, v = head.keys_values(head.fuse(taps), batch.ids, batch.positions)
            attention.store(0, k, v)
            return k, v

        record = room.device.record
        reading, feeding = record(read, kv, config), record(feed, kv, config)
        # With more layers than one, what is stored of a pair depends on all that the first layer makes of it.
        passes = HeadPasses(reading, feeding, record(store, kv, config) if config.layers == 1 else reading)
        ring = TapRing(room.state, self.window, room.n_pages, self._width, self.dtype)
        return EagleDrafter(head, passes, kv, ring, room.n_pages, room.state, room.sampling, room.sampler)

    def open_padded(self, room: PaddedRoom) -> PaddedEagleDrafter:
        return PaddedEagleDrafter(self.head, self.window, room)

    @property
    def _width(self) -> int:
        return len(self.head.config.taps) * self.head.config.target_hidden
