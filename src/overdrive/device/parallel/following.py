"""What a rank that follows has in the place of what only the leader needs."""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.device.sampling import Layout, Masks, SamplingState


def undrawn(logits: Tensor, layout: Layout, drafts: Tensor, state: SamplingState, masks: Masks | None = None) -> Tensor:
    """`Sampler` of ranks that follow: the leader's draws replace it."""
    return torch.zeros_like(layout.rows)
