"""Drafts that a grammar writes: text that certainly follows, such as the next key of an object.

When drafts are launched the host does not know yet what the step before has drawn. So with that step's masks it wrote,
for every position of the chain, runs of what is certain behind it: behind the token to be drawn there, where that is
certain itself, or behind some that end a word. Which of the runs holds is decided here, where the draws are:

    chain        state   d0      d1                    forced[j]: what follows state behind j drafts
    drawn                d0      x                     counts = 2, the newest token x was drawn at position 1
    forced[1]                    x   f1  f2            begins with x: f1 f2 are the next drafts
                                 y   g1

Functions of tensors in static shapes, for any device; nothing waits. Knows runs and slots, never a grammar.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RUNS = 2
"""Runs of each position: where a grammar leaves a choice, so many of the ends of a word are followed."""

SOURCE = "grammar"
"""The name of who writes these drafts."""


def with_grammar(sources: Sequence[str]) -> tuple[str, ...]:
    """A drafter's sources, and this one behind them; nobody's where nobody drafts."""
    return tuple(sources) if tuple(sources) == ("none",) else (*sources, SOURCE)


class ForcedRuns:
    """following: [slots, longest] int64, what certainly follows the newest token of each slot, -1 beyond."""

    def __init__(self, slots: int, longest: int, device: torch.device | str = "cpu") -> None:
        """longest: most drafts of a row; 0 where nobody drafts, and nothing is kept."""
        self.longest = longest
        self.following = torch.full((slots, longest), -1, dtype=torch.int64, device=device)

    @property
    def shape(self) -> tuple[int, int]:
        """Of a position's runs as the host writes them: how many, and the token to be drawn with what follows it."""
        return (RUNS, self.longest + 1) if self.longest else (0, 0)

    def forget(self, slots: Tensor) -> None:
        """Nothing is certain of these slots, [R] int64: others have them now."""
        self.following.index_fill_(0, slots, -1)

    def set(self, slot: int, run: Sequence[int]) -> None:
        """The host knows the slot's newest token and that `run` follows it."""
        padded = [*run[: self.longest], *[-1] * (self.longest - len(run))]
        self.following[slot] = torch.tensor(padded, dtype=torch.int64)

    def keep(self, slots: Tensor, forced: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """A step was accepted. forced: [R, Q, *shape]. tokens: [R, Q] and counts: [R], int64: what it yielded."""
        last = (counts - 1).clamp(min=0).unsqueeze(1)  # [R, 1]
        runs = forced.gather(1, last.view(-1, 1, 1, 1).expand(-1, 1, *self.shape)).squeeze(1)  # [R, runs, width]
        holds = (runs[..., 0] == tokens.gather(1, last)) & (counts > 0).unsqueeze(1)  # [R, runs], one at most
        run = torch.where(holds.unsqueeze(2), runs[..., 1:], -1).amax(dim=1)
        self.following.index_copy_(0, slots, run)

    def write_over(
        self, slots: Tensor, caps: Tensor, tokens: Tensor, counts: Tensor, sources: Tensor, source: int
    ) -> None:
        """Put the runs in the place of others' drafts: tokens [R, K], counts, sources [R], int64, as in `Drafts`.

        Drafts that say the same and more are left alone. caps: [R], most drafts of each row. source: the number of this
        one.
        """
        k = tokens.shape[1]
        run = torch.nn.functional.pad(self.following[slots][:, :k], (0, max(0, k - self.longest)), value=-1)
        known = (run >= 0).to(torch.int64).cumprod(dim=1).sum(dim=1)
        length = torch.minimum(known, caps)
        inside = torch.arange(k, device=tokens.device) < length.unsqueeze(1)  # [R, K]
        same = ((tokens == run) | ~inside).all(dim=1) & (counts >= length)
        taken = (length > 0) & ~same
        tokens.copy_(torch.where(taken.unsqueeze(1), torch.where(inside, run, 0), tokens))
        counts.copy_(torch.where(taken, length, counts))
        sources.masked_fill_(taken, source)
