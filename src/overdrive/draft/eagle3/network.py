"""EAGLE-3's draft network (Li et al. 2025): one decoder layer or a few over the target's features and next tokens.

    pair t:  feature g[t] of position t, and token x[t+1]  ->  what token x[t+2] will be
    place:   t + 1, where the pair's keys and values lie; it is rotated by t

Knows the order of operations. Must never know how weights are stored (`Linear`), where keys and values live
(`Attention`), which device runs it (`Ops`), or who drafts for whom. Between `Ops` and linears torch makes views alone,
so that a pass can be recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.model.ops import Angles, Attention, Ops
from overdrive.model.rope import rope_tables
from overdrive.model.transformer import Layer, Linear


class HeadHidden(NamedTuple):
    """What the head makes of T pairs. feedback: [T, H], the feature of the next pair where the target has none yet.
    normed: [T, H], for `logits`. They may be the same tensor."""

    feedback: Tensor
    normed: Tensor


class HeadScored(NamedTuple):
    """Of the N pairs that are wanted. feedback: [N, H], as in `HeadHidden`. logits: [N, Vd]."""

    feedback: Tensor
    logits: Tensor


class HeadNorms(NamedTuple):
    """Norm weights outside the layers. hidden [H]: of the feature; final [H]; taps: [Ht] each, none without fc_norm."""

    hidden: Tensor
    final: Tensor
    taps: tuple[Tensor, ...]


class EagleHead:
    """A draft network with its weights. Stateless between calls; the caller holds torch.inference_mode.

    embedding: [V, H], the target's unless the head has its own. fc: n * Ht -> H. layers: the first one's qkv reads
    [embedding; feature], 2H, and its input_norm is the embedding's. lm_head: H -> Vd. target_ids: [Vd] int64, the
    target's id of each draft id. max_model_len: positions of the target, which are also the places a pair may have.
    """

    def __init__(
        self,
        config: HeadConfig,
        embedding: Tensor,
        fc: Linear,
        layers: Sequence[Layer],
        norms: HeadNorms,
        lm_head: Linear,
        target_ids: Tensor,
        ops: Ops,
        max_model_len: int,
    ) -> None:
        self.config = config
        self.dtype = embedding.dtype
        self.device = embedding.device
        self.target_ids = target_ids
        self._embedding = embedding
        self._fc = fc
        self._layers = tuple(layers)
        self._norms = norms
        # What follows each layer's output: the norm that opens the next one, and the final norm.
        self._next_norms = (*(layer.input_norm for layer in self._layers[1:]), norms.final)
        self._lm_head = lm_head
        self._ops = ops
        self._cos, self._sin = (
            table.to(self.device) for table in _rows_by_place(config, max_model_len, embedding.dtype)
        )  # [max_model_len, D/2]

    def fuse(self, taps: Tensor) -> Tensor:
        """Features of the target, [T, H], from its residual stream at `config.taps`, side by side [T, n * Ht]."""
        if self._norms.taps:
            normed = self._ops.empty(*taps.shape)
            width = self.config.target_hidden
            for tap, out, weight in zip(
                taps.split(width, dim=1), normed.split(width, dim=1), self._norms.taps, strict=True
            ):
                self._ops.rms_norm(tap, weight, self.config.norm_eps, out)
            taps = normed
        return self._fc(taps)

    def forward(self, features: Tensor, ids: Tensor, places: Tensor, attention: Attention) -> HeadHidden:
        """The head over T pairs; keys and values go wherever `attention` stores them.

        features: [T, H], fused ones of the target or the head's own feedback, left as they are. ids: [T] int64, the
        token *after* each feature's position. places: [T] int64, that token's position, 1 or more.
        """
        ops, eps, config = self._ops, self.config.norm_eps, self.config
        x = self._inputs(features, ids)
        hidden = x.split(config.hidden, dim=1)[1]
        residual = ops.copy(hidden if config.norm_before_residual else features)  # the layers update it in place
        for index, (layer, next_norm) in enumerate(zip(self._layers, self._next_norms, strict=True)):
            attended = self._attend(index, layer, x, places, attention)
            x = ops.add_rms_norm(residual, attended, layer.post_norm, eps)
            x = ops.add_rms_norm(residual, ops.project(layer.down, ops.gate(layer.gate_up, x)), next_norm, eps)
        return HeadHidden(x if config.norm_output else residual, x)

    def keys_values(self, features: Tensor, ids: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer stores of T pairs, each [T, Hkv, D]: all that a head of one layer keeps of them."""
        q, k, v = self._qkv(self._layers[0], self._inputs(features, ids))
        self._ops.rope(q, k, *self._angles(places))
        return k, v

    def _inputs(self, features: Tensor, ids: Tensor) -> Tensor:
        """What the first layer reads, [T, 2H]: the normed embedding and the normed feature, side by side."""
        ops, eps, width = self._ops, self.config.norm_eps, self.config.hidden
        x = ops.empty(len(ids), 2 * width)
        embedded, hidden = x.split(width, dim=1)
        ops.rms_norm(ops.embed(ids, self._embedding), self._layers[0].input_norm, eps, embedded)
        ops.rms_norm(features, self._norms.hidden, eps, hidden)
        return x

    def _attend(self, index: int, layer: Layer, x: Tensor, places: Tensor, attention: Attention) -> Tensor:
        """The attention block of one layer: [T, 2H] in the first one, else [T, H] -> [T, H]."""
        attended = self._ops.attend(attention, index, *self._qkv(layer, x), self._angles(places))
        return self._ops.project(layer.output, attended)

    def _angles(self, places: Tensor) -> Angles:
        return Angles(places, self._cos, self._sin)

    def _qkv(self, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, Hq, D], keys and values [T, Hkv, D] of a layer, not rotated: views of one product."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        qkv = self._ops.project(layer.qkv, x).view(-1, heads + 2 * kv_heads, self.config.head_dim)
        q, k, v = qkv.split_with_sizes((heads, kv_heads, kv_heads), dim=1)
        return q, k, v

    def score(self, batch: Batch, features: Tensor, attention: Attention) -> HeadScored:
        """`forward` over the batch's pairs, whose positions are their places, and what follows the wanted ones."""
        hidden = self.forward(features, batch.ids, batch.positions, attention)
        wanted = HeadHidden(*(self._ops.embed(batch.wanted, part) for part in hidden))  # embed gathers rows
        return HeadScored(wanted.feedback, self.logits(wanted.normed))

    def logits(self, normed: Tensor) -> Tensor:
        """Scores of every draft id: [N, H] -> [N, Vd] in float32, or float64 if the head is."""
        logits = self._lm_head(normed)
        return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def _rows_by_place(config: HeadConfig, places: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine for the pair at each place p, rotated by p - 1; place 0 is never used."""
    cos, sin = rope_tables(config.rope, config.head_dim, places - 1, dtype)
    return torch.cat((cos[:1], cos)), torch.cat((sin[:1], sin))
