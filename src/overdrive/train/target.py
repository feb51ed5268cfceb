"""The target as a teacher: its features and next-token distributions for whole batches of conversations.

The model is the engine's own `Transformer` in plain torch; only where keys and values live differs, for a batch of
whole conversations needs no cache. Must never know the head or the loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.config import ModelOptions
from overdrive.device.batch import Batch
from overdrive.model.assemble import Checkpoint, Form, assemble, dense_factory
from overdrive.model.config import ModelConfig
from overdrive.model.fingerprint import fingerprint
from overdrive.model.ops import TorchOps
from overdrive.model.transformer import Transformer
from overdrive.model.weights import locate, open_checkpoint
from overdrive.progress import Progress

ROWS = 4096  # of full-vocabulary logits at a time


class Distribution(NamedTuple):
    """What the target says next at N places.

    shares: [N, draft vocabulary], softmax over those ids alone. best: [N] int64, its likeliest id of all.
    drafted: [N] int64, index of `best` within the draft vocabulary, -1 where it is not part of it.
    """

    shares: Tensor
    best: Tensor
    drafted: Tensor


class WholeSequences:
    """`Attention` for right-padded conversations [B, S]: causal, so that padding behind a token changes nothing."""

    def __init__(self, config: ModelConfig, batch: int, width: int) -> None:
        self._config, self._batch, self._width = config, batch, width

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, s, window = self._batch, self._width, self._config.window(layer)
        q, k, v = (x.reshape(b, s, x.shape[1], x.shape[2]).transpose(1, 2) for x in (q, k, v))
        if 0 < window < s:
            places = torch.arange(s, device=q.device)
            back = places[:, None] - places  # [S, S]: how far a key lies behind
            seen = (back >= 0) & (back < window)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(b * s, -1)


class Teacher:
    """A target with frozen weights on `device`.

    embedding: [V, H] in the model's dtype. head: [V, H] in float32 or better, so that its logits tell close tokens
    apart. checkpoint: its weights by name, for heads that start from them. fingerprint: of its weights.
    Raises OverdriveError for a bad model.
    """

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress
    ) -> None:
        dense = dense_factory(dtype, device)
        form = Form(dtype, device, dense, TorchOps(dtype, device), dense)
        self.config, self.checkpoint, self.device, self.dtype = config, checkpoint, device, dtype
        self.transformer: Transformer = assemble(config, checkpoint, form, config.max_positions, progress)
        exact = torch.promote_types(dtype, torch.float32)
        self.embedding = self.transformer.embedding
        name = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
        self.head = checkpoint.tensor(name).to(device, exact)
        self.fingerprint = fingerprint(checkpoint.tensor("model.norm.weight"))

    @classmethod
    def load(
        cls, model: str, options: ModelOptions, device: torch.device, dtype: torch.dtype, progress: Progress
    ) -> Teacher:
        """Find and read a model as `overdrive serve` would."""
        config, checkpoint = open_checkpoint(locate(model, options, progress), options)
        return cls(config, checkpoint, device, dtype, progress)

    @torch.no_grad()
    def features(self, ids: Tensor, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """ids [B, S], padded behind -> the taps side by side [B, S, 3H], and the final-normed state [B * S, H]."""
        b, s = ids.shape
        none = torch.zeros(0, dtype=torch.int64, device=ids.device)
        batch = Batch(
            ids=ids.flatten(),
            positions=torch.arange(s, device=ids.device).repeat(b),
            rows=none,
            offsets=none,
            page_table=none,
            starts=none,
            gaps=none,
            writes=none,
            wanted=none,
        )
        hidden = self.transformer.forward(batch, WholeSequences(self.config, b, s), taps)
        return hidden.taps.view(b, s, -1), hidden.final

    @torch.no_grad()
    def distribution(self, final: Tensor, draft_ids: Tensor) -> Distribution:
        """final: [N, H] as `features` gives it. draft_ids: [draft vocabulary] int64, ascending."""
        shares = torch.empty((len(final), len(draft_ids)), dtype=self.dtype, device=final.device)
        best = torch.empty(len(final), dtype=torch.int64, device=final.device)
        for start in range(0, len(final), ROWS):
            part = slice(start, start + ROWS)
            logits = final[part].to(self.head.dtype) @ self.head.T
            best[part] = logits.argmax(-1)
            shares[part] = logits[:, draft_ids].softmax(-1)
        found = torch.searchsorted(draft_ids, best).clamp_(max=len(draft_ids) - 1)
        return Distribution(shares, best, torch.where(draft_ids[found] == best, found, -1))
