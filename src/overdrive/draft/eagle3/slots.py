"""What a draft network knows of each slot and page when everything stands on the device.

The same as `Reading`, `TapRing` and `PageMarks` say for the CPU, as tensors that kernels read and write. The last slot
is nobody's: padding rows write there. Page 0 is nobody's either.

A model that reads the text alone is a head whose pairs need no taps, and whose first place is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.device.state import SlotState

FIRST = 1
"""The lowest place in use."""


@dataclass(frozen=True, slots=True)
class HeadSlots:
    """Of slot s the head has read the pairs at places 1 .. stops[s] - 1, but for those in its gap.

    stops: [S] int64, the place of the next pair to read. gaps: [S, 2] int64, as `Batch.gaps`, never behind the stop.
    ring: [S, window, W], taps of position p at p % window, of the newest positions from `oldest` [S] int64 on.
    before: [S, W], taps of the position before the newest step, where that filled the whole ring.
    page_taps: [n_pages, W], of each page's last position. marks: [n_pages] uint8, 1 where the head's part of the whole
    page stands. one_layer: what is stored of a pair then depends on the text up to the pair alone, not on what the head
    has in view.
    """

    stops: Tensor
    gaps: Tensor
    oldest: Tensor
    ring: Tensor
    before: Tensor
    page_taps: Tensor
    marks: Tensor
    one_layer: bool

    @classmethod
    def allocate(
        cls, state: SlotState, window: int, n_pages: int, width: int, one_layer: bool, dtype: torch.dtype
    ) -> HeadSlots:
        """Of the slots of `state`, on its device. width: W, all taps of a position side by side."""
        slots, device = len(state.lengths), state.lengths.device

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            stops=integers(slots) + FIRST,
            gaps=integers(slots, 2),
            oldest=integers(slots),
            ring=torch.zeros((slots, window, width), dtype=dtype, device=device),
            before=torch.zeros((slots, width), dtype=dtype, device=device),
            page_taps=torch.zeros((n_pages, width), dtype=dtype, device=device),
            marks=torch.zeros(n_pages, dtype=torch.uint8, device=device),
            one_layer=one_layer,
        )

    @property
    def window(self) -> int:
        """Newest positions whose taps are kept."""
        return self.ring.shape[1]
