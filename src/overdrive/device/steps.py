"""The bookkeeping of a step around the model: its batch, what drafts agree with the draws, what becomes known.

A device may bring its own `Steps`; `TorchSteps` runs everywhere and is what the others are compared with.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from overdrive.device.batch import Batch, flatten
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.device.verify import Imposed, Verified, agree


class Steps(Protocol):
    """The methods and their meaning are those of the functions in `TorchSteps`."""

    def flatten(
        self,
        state: SlotState,
        slots: Tensor,
        known: Tensor,
        emits: Tensor,
        drafts: Tensor,
        n_drafts: Tensor,
        upper_len: int,
    ) -> tuple[Batch, Layout]:
        """See `overdrive.device.batch.flatten`."""
        ...

    def agree(
        self, drawn: Tensor, layout: Layout, drafts: Tensor, n_drafts: Tensor, imposed: Imposed | None = None
    ) -> Verified:
        """See `overdrive.device.verify.agree`."""
        ...

    def advance(self, state: SlotState, slots: Tensor, known: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """See `SlotState.advance`."""
        ...


class TorchSteps:
    """`Steps` in plain torch, on any device."""

    flatten = staticmethod(flatten)
    agree = staticmethod(agree)
    advance = staticmethod(SlotState.advance)
