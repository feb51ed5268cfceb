"""Log-probabilities of a step's logit rows in static shapes: of every row, whoever asked; the host picks.

Of the raw target distribution, as `overdrive.device.logprobs`, in float32 whatever the logits are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.device.logprobs import Logprobs, logprobs

PARTS = 128
"""Most parts that a row is divided into, each for one program."""


class Scores:
    """Where the log-probabilities of up to N rows stand, with their n best: `found`, and the kernels' scratch memory.

    Made before any graph is captured: graphs know it by address. n may be 0.
    """

    def __init__(self, rows: int, n: int, device: torch.device | str) -> None:
        device = torch.device(device)

        def blank(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        self.n = n
        self.found = Logprobs(
            chosen=blank(rows),
            ranks=blank(rows, kind=torch.int64),
            top_ids=blank(rows, n, kind=torch.int64),
            top=blank(rows, n),
        )
        parts = PARTS if device.type == "cuda" else 0
        self.tops, self.masses = blank(rows, parts), blank(rows, parts)
        self.ahead = blank(rows, parts, kind=torch.int32)
        self.keys = blank(rows, parts, n, kind=torch.int64)

    def of(self, rows: int) -> Logprobs:
        """Views of the first `rows` rows."""
        found = self.found
        return Logprobs(found.chosen[:rows], found.ranks[:rows], found.top_ids[:rows], found.top[:rows])


def score(logits: Tensor, tokens: Tensor, scores: Scores) -> None:
    """Fill the first N rows of `scores.found`: log-probability and rank of `tokens` [N] int64, and the best ids.

    logits: [N, V]. Ties go to the lower id. With fewer logits than n the rest of a row is 0.
    """
    if logits.is_cuda:
        from overdrive.device.cuda import logprobs_kernels

        logprobs_kernels.score(logits, tokens, scores)
    else:
        torch_score(logits, tokens, scores)


def torch_score(logits: Tensor, tokens: Tensor, scores: Scores) -> None:
    """`score` in torch."""
    found, into = logprobs(logits, tokens, scores.n), scores.of(len(logits))
    into.chosen.copy_(found.chosen)
    into.ranks.copy_(found.ranks)
    into.top_ids.zero_()[:, : found.top_ids.shape[1]] = found.top_ids
    into.top.zero_()[:, : found.top.shape[1]] = found.top
