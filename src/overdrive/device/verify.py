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

from overdrive.device.noise import keyed_hash
from overdrive.device.sampling import Layout, Masks, Sampler, SamplingState, sample

IMPOSED_ID = 0xFFFFFFFF
"""Stands for the token in the hash that imposes acceptance: no token has this id, so the noise of none is repeated."""


@dataclass(frozen=True, slots=True)
class Verified:
    """tokens: [R, K+1] int64, row r's new tokens are `tokens[r, :counts[r]]`, 0 beyond. counts: [R] int64."""

    tokens: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Imposed:
    """Acceptance as a measurement prescribes it: only the comparison of draft and draw is replaced.

    rates: [K] float32, chance that draft j is accepted if those before it were; K at least 1 and the most drafts of any
    row; what padding there may be behind them has no rate of its own.
    seeds: [slots] int64, of the slots' requests.
    """

    rates: Tensor
    seeds: Tensor

    def accepts(self, slots: Tensor, positions: Tensor, depths: Tensor) -> Tensor:
        """Whether drafts are accepted: `depths` before them in their row, at `positions`. int64, broadcasting; bool.

        A hash of seed and position decides, so that every device and every batch decides alike.
        """
        salt = torch.full_like(positions, IMPOSED_ID)
        level = keyed_hash(self.seeds[slots], positions, salt) >> 8  # 24 bits, exact in float32
        return level.to(torch.float32) * 2.0**-24 < self.rates[depths.clamp(max=len(self.rates) - 1)]


def agree(drawn: Tensor, layout: Layout, drafts: Tensor, n_drafts: Tensor, imposed: Imposed | None = None) -> Verified:
    """Accept the longest run of drafts that the draws confirm, or that `imposed` accepts in place of them.

    drawn: [N] int64, what was drawn at every logit row. layout: what each is for, in any order. drafts: [R, K] int64,
    of which the first `n_drafts[r]` count and the rest are never accepted, whatever they hold. Rows of the step without
    draws get count 0; a row with draws has them for depths 0 .. at least `n_drafts[r]`.
    """
    rows, width = drafts.shape
    tokens = drafts.new_full((rows, width + 1), -1)
    tokens[layout.rows, layout.depths] = drawn
    offered = torch.arange(width, device=drafts.device) < n_drafts.unsqueeze(1)  # [R, K]
    agreed = drafts == tokens[:, :-1] if imposed is None else lucky(imposed, layout, drafts)
    agreed = agreed & offered & (tokens[:, 1:] >= 0)
    accepted = agreed.to(torch.int64).cumprod(dim=1).sum(dim=1)
    counts = torch.where(tokens[:, 0] >= 0, accepted + 1, 0)
    new = torch.arange(width + 1, device=drafts.device) < counts.unsqueeze(1)
    return Verified(tokens.masked_fill(~new, 0), counts)


def lucky(imposed: Imposed, layout: Layout, drafts: Tensor) -> Tensor:
    """[R, K] bool, the drafts that `imposed` accepts; those without a logit row are refused."""
    rows, width = drafts.shape
    accepts = torch.zeros((rows, width + 1), dtype=torch.bool, device=drafts.device)
    accepts[layout.rows, layout.depths] = imposed.accepts(layout.slots, layout.positions, layout.depths)
    return accepts[:, :-1]


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
