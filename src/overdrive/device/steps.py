"""The bookkeeping of a step around the model: its batch, what drafts agree with the draws, what becomes known.

A device may bring its own `Steps`; `TorchSteps` runs everywhere and is what the others are compared with.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from overdrive.device.batch import Batch, flatten
from overdrive.device.sampling import Layout, Masks
from overdrive.device.state import SlotState
from overdrive.device.verify import Imposed, Verified, agree
from overdrive.grammar.sheet import MaskSheet


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

    def masks(self, sheet: MaskSheet, layout: Layout) -> Masks:
        """See `masks`."""
        ...

    def agree(
        self, drawn: Tensor, layout: Layout, drafts: Tensor, n_drafts: Tensor, imposed: Imposed | None = None
    ) -> Verified:
        """See `overdrive.device.verify.agree`."""
        ...

    def advance(self, state: SlotState, slots: Tensor, known: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """See `SlotState.advance`."""
        ...


def masks(sheet: MaskSheet, layout: Layout) -> Masks:
    """The sheet as samplers read it, on the layout's device; the host's memory itself where that is the device's."""
    device = layout.rows.device
    lines = torch.from_numpy(sheet.index).to(device)
    return Masks(torch.from_numpy(sheet.bits).to(device), lines[layout.rows, layout.depths])


class TorchSteps:
    """`Steps` in plain torch, on any device."""

    flatten = staticmethod(flatten)
    masks = staticmethod(masks)
    agree = staticmethod(agree)
    advance = staticmethod(SlotState.advance)
