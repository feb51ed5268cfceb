"""The drafter of a server that does not speculate."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from overdrive.draft.base import Drafts, Fed
from overdrive.draft.padded import DescribedRows, KeepsNothing, PaddedDrafts
from overdrive.types import PageEntry


class NoDrafter:
    """Offers nothing and keeps nothing."""

    sources = ("none",)
    taps = ()

    def enter(self, entry: PageEntry) -> None:
        """Nothing to note."""

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """Nothing to reset."""

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """No drafts for any row."""
        nothing = caps.new_zeros(len(slots))
        return Drafts(caps.new_zeros((len(slots), width)), nothing, nothing)

    def absorb(self, fed: Fed) -> None:
        """Nothing to keep."""

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Nothing to read."""


class PaddedNoDrafter(KeepsNothing):
    """The same in static shapes. `PaddedDrafter`."""

    sources = ("none",)

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        """No drafts for any row."""
        drafts.counts.zero_()
        drafts.sources.zero_()
