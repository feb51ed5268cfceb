"""What a drafter is given to work with, and what it says before it has any state: how much memory it will want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from overdrive.device.sampling import Sampler, SamplingState
from overdrive.device.state import SlotState
from overdrive.draft.base import Drafter
from overdrive.draft.padded import PaddedDrafter, PaddedRoom

if TYPE_CHECKING:  # a device runs drafters: it imports this room first
    from overdrive.device.cpu.device import CpuDevice


@dataclass(frozen=True, slots=True)
class Room:
    """One engine's device side, as far as drafters use it. Slots, lengths and pages are read on the stream."""

    device: CpuDevice
    state: SlotState
    sampling: SamplingState
    sampler: Sampler
    n_pages: int

    @property
    def slots(self) -> int:
        return len(self.state.lengths)


class Choice(Protocol):
    """A drafter that is chosen and loaded but has no state yet, so that memory can be shared out first.

    name: as `DraftOptions.draft` would say it. model: where its weights came from, empty without weights.
    window: newest tokens of a row that it reads before it drafts again, of those it missed; 0 where it reads none.
    """

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def window(self) -> int: ...

    def page_bytes(self, page_size: int) -> int:
        """Memory beside every page of the target's KV."""
        ...

    def slot_bytes(self) -> int:
        """Memory for every slot."""
        ...

    def open(self, room: Room) -> Drafter:
        """The drafter, with its state."""
        ...

    def open_padded(self, room: PaddedRoom) -> PaddedDrafter:
        """The same in static shapes. Raises OverdriveError, one line, where there is no such form."""
        ...
