"""Log-probabilities that a request reports: of the raw target distribution, before any sampling rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.device.sampling import finite


@dataclass(frozen=True, slots=True)
class Logprobs:
    """chosen: [N] float32. ranks: [N] int64, 1 for the most likely. top_ids [N, n] int64, top [N, n], best first."""

    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top: Tensor

    def take(self, rows: Tensor, n: int) -> Logprobs:
        """Those of logit rows `rows`, with their best `n` alternatives."""
        return Logprobs(self.chosen[rows], self.ranks[rows], self.top_ids[rows, :n], self.top[rows, :n])


def logprobs(logits: Tensor, tokens: Tensor, n: int) -> Logprobs:
    """Log-softmax of raw logits [N, V] at `tokens` [N], and its `n` best; ties go to the lower id.

    Serves output positions (logits after the known token, the token drawn there) and prompt positions (the token that
    follows in the prompt) alike.
    """
    x = finite(logits)
    norm = x.logsumexp(dim=1)  # [N]
    chosen = x.gather(1, tokens.unsqueeze(1))  # [N, 1]
    ids = torch.arange(x.shape[1], device=x.device)
    ahead = (x > chosen) | ((x == chosen) & (ids < tokens.unsqueeze(1)))
    top_ids, top = _best(x, min(n, x.shape[1]))
    return Logprobs(
        chosen=(chosen.squeeze(1) - norm).float(),
        ranks=ahead.sum(dim=1) + 1,
        top_ids=top_ids,
        top=(top - norm.unsqueeze(1)).float(),
    )


def _best(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Ids and values of the n largest per row, equals by their id: topk leaves their order open, and which it takes."""
    if not n:
        return torch.zeros((len(x), 0), dtype=torch.int64, device=x.device), x[:, :0]
    least = x.topk(n, dim=1).values[:, -1:]
    rows, ids = (x >= least).nonzero(as_tuple=True)  # at least n a row, by rows and then by ids
    best = []
    for row in range(len(x)):
        found = ids[rows == row]
        best.append(found[x[row, found].argsort(descending=True, stable=True)[:n]])
    chosen = torch.stack(best) if best else torch.zeros((0, n), dtype=torch.int64, device=x.device)
    return chosen, x.gather(1, chosen)
