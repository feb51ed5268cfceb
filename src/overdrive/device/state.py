"""What the device knows of each slot: tokens, lengths and pages. The host reads none of it but through an Outcome."""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.types import OVERSHOOT, Admission, PageEntry


class SlotState:
    """history: [slots, max_len] int32, of which `lengths` [slots] int64 stand (prompt and accepted output).

    computed: [slots] int64, leading positions whose KV is stored; the next row of the slot feeds from there.
    page_table: [slots, W] int32; columns without a page hold 0, the scratch page.
    """

    def __init__(self, slots: int, max_model_len: int, page_size: int, device: torch.device | str = "cpu") -> None:
        max_len = max_model_len + OVERSHOOT
        self.page_size = page_size
        self.history = torch.zeros((slots, max_len), dtype=torch.int32, device=device)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.computed = torch.zeros(slots, dtype=torch.int64, device=device)
        self.page_table = torch.zeros((slots, -(-max_len // page_size)), dtype=torch.int32, device=device)

    def admit(self, admission: Admission) -> None:
        """Give the slot to a request."""
        slot, tokens = admission.slot, torch.tensor(admission.tokens, dtype=torch.int32)
        self.history[slot, : len(tokens)] = tokens
        self.lengths[slot] = len(tokens)
        self.computed[slot] = admission.computed
        self.page_table[slot] = 0

    def enter(self, entry: PageEntry) -> None:
        """Set page-table columns of a slot."""
        pages = torch.tensor(entry.pages, dtype=torch.int32)
        self.page_table[entry.slot, entry.first : entry.first + len(pages)] = pages

    def advance(self, slots: Tensor, known: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Accepted tokens become known: `tokens[r, :counts[r]]` follow in `slots[r]`.

        slots, known, counts: [R] int64. tokens: [R, K+1] int64. The KV of the known tokens and of the accepted drafts
        is stored; that of the newest token is not, and what a refused draft wrote is written over by the next step.
        """
        depth = torch.arange(tokens.shape[1], device=tokens.device)
        new = depth < counts.unsqueeze(1)  # [R, K+1]
        places = (self.lengths[slots].unsqueeze(1) + depth)[new]
        self.history[slots.unsqueeze(1).expand_as(tokens)[new], places] = tokens[new].int()
        self.lengths[slots] += counts
        self.computed[slots] += known + (counts - 1).clamp(0)
