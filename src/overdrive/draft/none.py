"""The drafter of a server that does not speculate."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from overdrive.draft.base import Drafts


class NoDrafter:
    """Offers nothing and keeps nothing."""

    def admit(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing to reset."""

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """No drafts for any row."""
        return Drafts(caps.new_zeros((len(slots), width)), caps.new_zeros(len(slots)))

    def absorb(self, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Nothing to advance."""
