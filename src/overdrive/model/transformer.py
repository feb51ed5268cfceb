"""The decoder: embedding, layers of attention and SwiGLU, final norm, head.

Knows shapes and the order of operations. It must never know how weights are stored (`Linear`), where keys and values
live (`Attention`), which device runs it (`Ops`), or what a request is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.model.config import ModelConfig
from overdrive.model.ops import Angles, Attention, Ops
from overdrive.model.rope import rope_tables


class Linear(Protocol):
    """A matrix product: x [T, in] -> [T, out], whatever form the weight has."""

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    """`Linear` over a plain weight [out, in] and an optional bias [out]."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Layer(NamedTuple):
    """One decoder layer's weights. `q_norm` and `k_norm` are [D], both None where the family has none."""

    input_norm: Tensor  # [H]
    qkv: Linear  # H -> (Hq + 2 Hkv) * D, queries first, then keys, then values
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear  # Hq * D -> H
    post_norm: Tensor  # [H]
    gate_up: Linear  # H -> 2F, gate first
    down: Linear  # F -> H


class Hidden(NamedTuple):
    """final: [T, H] after the final norm. taps: [T, n * H], the un-normed residual stream on entry to each of the n
    tapped layers, side by side, lowest layer first; [T, 0] when none is tapped."""

    final: Tensor
    taps: Tensor


class Scored(NamedTuple):
    """final, taps: as `Hidden`. logits: [N, V] of the batch's wanted tokens."""

    final: Tensor
    taps: Tensor
    logits: Tensor


class Transformer:
    """A decoder with its weights. Stateless between calls; the caller holds torch.inference_mode.

    embedding: [V, H], which a draft network may share. layers: all of them, in order. final_norm: [H]. head: H -> V.
    max_model_len: positions the rotary tables cover; a position beyond them is an error of the caller.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: Sequence[Layer],
        final_norm: Tensor,
        head: Linear,
        ops: Ops,
        max_model_len: int,
    ) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.dtype = embedding.dtype
        self.device = embedding.device
        self.embedding = embedding
        self.layers = tuple(layers)
        # norms[i] opens layer i; the last one is the final norm: each layer's output is added and normed in one call.
        self._norms = (*(layer.input_norm for layer in layers), final_norm)
        self._head = head
        self._ops = ops
        cos, sin = rope_tables(config.rope, config.head_dim, max_model_len, self.dtype)
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)  # [max_model_len, D/2]

    @property
    def final_norm(self) -> Tensor:
        """Weight of the last norm, [H]."""
        return self._norms[-1]

    def forward(self, batch: Batch, attention: Attention, taps: Sequence[int] = ()) -> Hidden:
        """Hidden states of every token of the batch; keys and values go wherever `attention` stores them.

        taps: layer indices in ascending order, counted by *input* (the number of layers names the last one's output).
        """
        ops, eps = self._ops, self.config.norm_eps
        residual = ops.embed(batch.ids, self.embedding)  # [T, H], a fresh tensor that the layers update in place
        tapped = ops.empty(len(residual), len(taps) * self.config.hidden)
        columns = dict(zip(taps, tapped.chunk(len(taps), dim=1), strict=True)) if taps else {}
        x = ops.rms_norm(residual, self._norms[0], eps)
        for index, layer in enumerate(self.layers):
            if index in columns:
                ops.copy(residual, columns[index])
            attended = self._attend(index, layer, x, batch.positions, attention)
            x = ops.add_rms_norm(residual, attended, layer.post_norm, eps)
            transformed = ops.project(layer.down, ops.gate(layer.gate_up, x))
            x = ops.add_rms_norm(residual, transformed, self._norms[index + 1], eps)
        if len(self.layers) in columns:
            ops.copy(residual, columns[len(self.layers)])
        return Hidden(x, tapped)

    def score(self, batch: Batch, attention: Attention, taps: Sequence[int] = ()) -> Scored:
        """`forward` and the logits of the tokens that are wanted."""
        final, tapped = self.forward(batch, attention, taps)
        return Scored(final, tapped, self.logits(self._ops.embed(batch.wanted, final)))  # embed gathers rows

    def _attend(self, index: int, layer: Layer, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """The attention block of one layer: normed input [T, H] -> [T, H], before the residual is added."""
        config, ops = self.config, self._ops
        heads, kv_heads = config.heads, config.kv_heads
        qkv = ops.project(layer.qkv, x).view(-1, heads + 2 * kv_heads, config.head_dim)
        q, k, v = qkv.split_with_sizes((heads, kv_heads, kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = ops.rms_norm(q, layer.q_norm, config.norm_eps), ops.rms_norm(k, layer.k_norm, config.norm_eps)
        attended = ops.attend(attention, index, q, k, v, Angles(positions, self._cos, self._sin))
        return ops.project(layer.output, attended)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token id: hidden [N, H], final-normed -> [N, V] in float32, or float64 if the model is."""
        logits = self._head(hidden)
        return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
