"""Draws a draft network's tokens as the target will draw its own: the row's rules and the same noise.

The agreement of sampled drafts with the target's draws comes from here: both add noise that is keyed by seed, position
and *target* id, so a network with fewer ids is drawn from over the target's vocabulary. CPU.
"""

from __future__ import annotations

import numba
import torch
from torch import Tensor

from overdrive.device.sampling import Layout, Sampler, SamplingState


class DraftSampler:
    """ids: [Vd] int64, the target's id of each draft id. slots: rows there can be."""

    def __init__(self, ids: Tensor, sampling: SamplingState, sampler: Sampler, slots: int) -> None:
        self._ids = ids
        self._sampling = sampling
        self._sampler = sampler
        # Ids that the network does not have keep the lowest score; the others are written over at every draw.
        self._scores = torch.full((slots, sampling.vocab_size), -torch.inf, dtype=sampling.dtype)
        self._spread(torch.zeros((0, len(ids)), dtype=sampling.dtype))  # compiles here, not under a request

    def draw(self, logits: Tensor, layout: Layout, drafts: Tensor) -> Tensor:
        """One target id per row, [N] int64. logits: [N, Vd]. drafts: as for a `Sampler`."""
        if self._sampling.plain[layout.slots].all():
            return torch.from_numpy(self._ids.numpy()[logits.numpy().argmax(axis=1)])
        return self._sampler(self._spread(logits.to(self._sampling.dtype)), layout, drafts, self._sampling)

    def _spread(self, logits: Tensor) -> Tensor:
        scores = self._scores[: len(logits)]
        _scatter(logits.numpy(), self._ids.numpy(), scores.numpy())
        return scores


@numba.njit(cache=True, nogil=True)
def _scatter(logits, ids, scores):
    for row in range(len(logits)):
        for index in range(len(ids)):
            scores[row, ids[index]] = logits[row, index]
