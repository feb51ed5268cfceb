"""Drawing one token for every row of a batch, in plain torch: greedy rows and sampled ones side by side.

No shape and no branch depends on values, so that it runs inside a CUDA graph. The noise is torch's own generator's:
unlike the server's keyed noise it is not the same for every batch mix, which training data has no need of.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CANDIDATES = 64
"""A nucleus is cut exactly when it has at most this many tokens. A wider one is left uncut: the row is then drawn from
the whole distribution, which spares the sort of the vocabulary."""

_CHUNK = 128
_COLDEST = 1e-6


def draw(logits: Tensor, temperature: Tensor, top_p: Tensor, generator: torch.Generator) -> Tensor:
    """One id per row, [B] int64.

    logits: [B, V]. temperature: [B], 0 for the argmax. top_p: [B] in (0, 1]. Gumbel's trick: the argmax of
    logit / temperature + noise is a draw from the softmax; the noise is -log of an exponential variable.
    """
    greedy = temperature < _COLDEST
    scaled = logits / torch.where(greedy, 1.0, temperature).unsqueeze(1)  # [B, V]
    keep = scaled >= nucleus_floor(scaled, torch.where(greedy, 1.0, top_p)).unsqueeze(1)
    noise = torch.empty_like(scaled).exponential_(generator=generator).log_().neg_()
    noise.masked_fill_(greedy.unsqueeze(1), 0.0)
    return scaled.add_(noise).masked_fill_(~keep, -torch.inf).argmax(1)


def nucleus_floor(scaled: Tensor, top_p: Tensor) -> Tensor:
    """The least logit inside each row's nucleus, [B]: the fewest best tokens whose probabilities reach top_p.

    -inf where top_p is 1 or the nucleus is wider than CANDIDATES.
    """
    best = top_values(scaled, min(CANDIDATES, scaled.shape[1]))  # [B, C], descending
    share = (best - torch.logsumexp(scaled, 1, keepdim=True)).exp()
    before = share.cumsum(1) - share  # mass of the better tokens
    inside = (before < top_p.unsqueeze(1)).sum(1)  # [B], at least 1
    floor = best.gather(1, (inside - 1).clamp(0).unsqueeze(1)).squeeze(1)
    cut = (top_p < 1) & (share.sum(1) >= top_p)
    return torch.where(cut, floor, -torch.inf)


def top_values(x: Tensor, count: int) -> Tensor:
    """The `count` largest of each row of x [B, V], descending.

    By chunks: those with the `count` largest maxima hold all of them, so only these are searched.
    """
    if x.shape[1] <= count * _CHUNK:
        return x.topk(count, 1).values
    missing = -x.shape[1] % _CHUNK
    chunks = (F.pad(x, (0, missing), value=-torch.inf) if missing else x).view(len(x), -1, _CHUNK)
    which = chunks.amax(2).topk(count, 1).indices  # [B, count]
    found = chunks.gather(1, which.unsqueeze(2).expand(-1, -1, _CHUNK))
    return found.flatten(1).topk(count, 1).values
