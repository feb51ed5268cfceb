"""N-gram drafts in static shapes: the history itself is searched, without an index.

Proposes exactly what `NgramDrafter` proposes. Here the search is written in torch, for any device; `copies_kernels` has
it in one launch. Knows tokens and lengths, nothing of who else drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.device.state import SlotState
from overdrive.draft.ngram import MAX_CANDIDATES, MAX_MATCH
from overdrive.draft.padded import DescribedRows, KeepsNothing, PaddedDrafts


def copy_runs(state: SlotState, rows: DescribedRows, drafts: PaddedDrafts, shortest: int, others: int) -> None:
    """Write the drafts of rows whose newest tokens, `shortest` or more, occurred before. Nothing waits.

    others: how many sources have written before; they are counted behind this one. Rows without a copy keep what they
    wrote; where there are none they get no drafts. The 0th source is the copier.
    """
    text, length = state.history[rows.slots].long(), state.lengths[rows.slots].unsqueeze(1)
    end, found = _best_ends(text, length, shortest)
    found &= rows.drafts > 0
    depth = torch.arange(drafts.tokens.shape[1], device=text.device)
    period = (length - 1 - end.unsqueeze(1)).clamp(min=1)
    copied = text.gather(1, (end.unsqueeze(1) + 1 + depth % period).clamp(max=text.shape[1] - 1))
    counts = torch.minimum(rows.drafts, torch.full_like(rows.drafts, len(depth)))
    kept = 1 if others else 0
    drafts.tokens.copy_(torch.where(found.unsqueeze(1), copied, drafts.tokens * kept))
    drafts.counts.copy_(torch.where(found, counts, drafts.counts * kept))
    drafts.sources.copy_(torch.where(found, 0, (drafts.sources + 1) * kept))


def _best_ends(text: Tensor, length: Tensor, shortest: int) -> tuple[Tensor, Tensor]:
    """End of the longest earlier match of each row's newest tokens, and whether there is one. text: [R, L].

    The latest MAX_CANDIDATES matches are compared, over MAX_MATCH tokens; the latest of equals wins.
    """
    reach, ends = max(shortest, MAX_MATCH), torch.arange(text.shape[1], device=text.device)
    before = torch.nn.functional.pad(text, (reach - 1, 0), value=-1).unfold(1, reach, 1).flip(2)  # [R, L, reach]
    back = torch.arange(reach, device=text.device)
    newest = text.gather(1, (length - 1 - back).clamp(min=0)).unsqueeze(1)
    matched = (before == newest).to(torch.int64).cumprod(dim=2).sum(dim=2)  # [R, L]
    candidate = (matched >= shortest) & (ends < length - 1)
    latest = candidate.flip(1).cumsum(dim=1).flip(1) <= MAX_CANDIDATES
    score = torch.where(candidate & latest, matched.clamp(max=MAX_MATCH) * len(ends) + ends, -1).amax(dim=1)
    return score.clamp(min=0) % len(ends), score >= 0


class PaddedNgramDrafter(KeepsNothing):
    """Copies alone. `PaddedDrafter`: it reads the device's history."""

    sources = ("ngram",)

    def __init__(self, state: SlotState, shortest: int) -> None:
        if shortest < 1:
            raise ValueError(f"a match needs at least one token, not {shortest}")
        self._copy_runs = copy_runs
        if state.history.is_cuda:
            from overdrive.draft import copies_kernels  # and with it Triton, which only GPUs need

            self._copy_runs = copies_kernels.copy_runs
        self._state = state
        self._shortest = shortest

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        """As many drafts as a row may have where its newest tokens occurred before, else none."""
        self._copy_runs(self._state, rows, drafts, self._shortest, others=0)

    def copy_over(self, rows: DescribedRows, drafts: PaddedDrafts, others: int) -> None:
        """The same over the drafts of `others` sources, which keep the rows that have no copy."""
        self._copy_runs(self._state, rows, drafts, self._shortest, others)
