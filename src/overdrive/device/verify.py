"""Verification of drafted chains: pure functions over tensors.

The target draws its own token at every position of a row; where draft and draw agree the draft is accepted, and the
first draw behind the accepted drafts is the row's newest token. Noise is keyed by position and token (noise.py), so the
accepted text is what drawing one token at a time would give, whatever the drafts hold and however many there are.
Knows nothing of drafters, plans or requests.

    drafts        d0   d1   d2          n_drafts = 3
    draws    s0   s1   s2   s3          depth 0..3
             d0=s0, d1=s1, d2!=s2   ->  tokens s0 s1 s2, count 3
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.device.sampling import Layout, Masks, Sampler, SamplingState, sample


@dataclass(frozen=True, slots=True)
class Verified:
    """tokens: [R, K+1] int64, row r's new tokens are `tokens[r, :counts[r]]`, 0 beyond. counts: [R] int64."""

    tokens: Tensor
    counts: Tensor


def agree(drawn: Tensor, layout: Layout, drafts: Tensor, n_drafts: Tensor) -> Verified:
    """Accept the longest run of drafts that the draws confirm.

    drawn: [N] int64, what was drawn at every logit row. layout: what each is for, in any order. drafts: [R, K] int64,
    of which the first `n_drafts[r]` count and the rest are never accepted, whatever they hold. Rows of the step without
    draws get count 0; a row with draws has them for depths 0 .. at least `n_drafts[r]`.
    """
    rows, width = drafts.shape
    tokens = drafts.new_full((rows, width + 1), -1)
    tokens[layout.rows, layout.depths] = drawn
    offered = torch.arange(width, device=drafts.device) < n_drafts.unsqueeze(1)  # [R, K]
    agreed = (drafts == tokens[:, :-1]) & offered & (tokens[:, 1:] >= 0)
    accepted = agreed.to(torch.int64).cumprod(dim=1).sum(dim=1)
    counts = torch.where(tokens[:, 0] >= 0, accepted + 1, 0)
    new = torch.arange(width + 1, device=drafts.device) < counts.unsqueeze(1)
    return Verified(tokens.masked_fill(~new, 0), counts)


def verify(
    logits: Tensor,
    layout: Layout,
    drafts: Tensor,
    n_drafts: Tensor,
    state: SamplingState,
    masks: Masks | None = None,
    sampler: Sampler = sample,
) -> Verified:
    """Draw at every logit row [N, V] and let the drafts `agree`."""
    return agree(sampler(logits, layout, drafts, state, masks), layout, drafts, n_drafts)
