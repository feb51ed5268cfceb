"""EAGLE-3 once more, slowly: float64 torch, one sequence, no cache, no pages, every draft computed from scratch.

Written from the design's text and sharing no code with the package but the config's fields, so that a mistake in one
is not made in the other. Unscaled rotary embedding only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.draft.eagle3.config import HeadConfig


class Drafted(NamedTuple):
    """ids: K target ids. logits: [K, Vd]. features: [n, H], fused. feedback: [K, H], the output behind each draft."""

    ids: list[int]
    logits: Tensor
    features: Tensor
    feedback: Tensor


class Reference:
    """A head by its canonical tensors; `embedding` is the target's."""

    def __init__(self, config: HeadConfig, tensors: dict[str, Tensor], embedding: Tensor) -> None:
        self.config = config
        self.weights = {name.removesuffix(".weight"): tensor.double() for name, tensor in tensors.items()}
        self.embedding = self.weights.get("embed_tokens", embedding.double())

    def draft(self, taps: Tensor, tokens: list[int], k: int, gap: tuple[int, int] = (0, 0)) -> Drafted:
        """K greedy drafts after `tokens`, the last of which the target has not seen: taps [len(tokens) - 1, n * Ht].

        gap: positions `gap[0] .. gap[1] - 1` are seen by none behind them.
        """
        fused = self.fuse(taps.double())
        features, following, logits = fused, list(tokens[1:]), []
        for _ in range(k):
            feedback, scores = self.forward(features, following, gap)
            logits.append(scores[-1])
            features = torch.cat((features, feedback[-1:]))
            following.append(self.target_id(int(scores[-1].argmax())))
        return Drafted(following[-k:], torch.stack(logits), fused, features[-k:])

    def target_id(self, draft: int) -> int:
        return draft + int(self.weights["d2t"][draft]) if "d2t" in self.weights else draft

    def fuse(self, taps: Tensor) -> Tensor:
        parts = list(taps.split(self.config.target_hidden, dim=1))
        if self.config.fc_norm:
            parts = [self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)]
        return torch.cat(parts, dim=1) @ self.weights["fc"].T

    def forward(self, features: Tensor, following: list[int], gap: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor]:
        """Output fed back and draft logits at every position: features [n, H], the token after each."""
        embedded = self.norm(self.embedding[torch.tensor(following)], "layers.0.input_layernorm")
        hidden = self.norm(features, "layers.0.hidden_norm")
        stream = hidden if self.config.norm_before_residual else features
        for i in range(self.config.layers):
            layer = f"layers.{i}."
            inputs = self.norm(stream, layer + "input_layernorm") if i else torch.cat((embedded, hidden), dim=1)
            stream = stream + self.attention(inputs, layer + "self_attn.", gap)
            stream = stream + self.mlp(self.norm(stream, layer + "post_attention_layernorm"), layer + "mlp.")
        final = self.norm(stream, "norm")
        return (final if self.config.norm_output else stream), final @ self.weights["lm_head"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(dim=1, keepdim=True) + self.config.norm_eps).sqrt() * self.weights[name]

    def mlp(self, x: Tensor, prefix: str) -> Tensor:
        gate, up = x @ self.weights[prefix + "gate_proj"].T, x @ self.weights[prefix + "up_proj"].T
        return (gate / (1 + torch.exp(-gate)) * up) @ self.weights[prefix + "down_proj"].T

    def attention(self, x: Tensor, prefix: str, gap: tuple[int, int]) -> Tensor:
        """Position t sees 0 .. t, from behind the gap without it. Query head h has key head h // (heads / kv_heads)."""
        dim, group = self.config.head_dim, self.config.heads // self.config.kv_heads
        q, k, v = (
            (x @ self.weights[f"{prefix}{part}_proj"].T).unflatten(1, (-1, dim)).transpose(0, 1) for part in "qkv"
        )
        hidden = torch.ones(len(x), len(x)).triu(1).bool()
        hidden[gap[1] :, gap[0] : gap[1]] = True
        heads = []
        for head in range(self.config.heads):
            scores = self.rotate(q[head]) @ self.rotate(k[head // group]).T / dim**0.5
            heads.append(scores.masked_fill(hidden, -torch.inf).softmax(dim=1) @ v[head // group])
        return torch.cat(heads, dim=1) @ self.weights[prefix + "o_proj"].T

    def rotate(self, x: Tensor) -> Tensor:
        """[n, D]: components i and i + D/2 are one complex number, turned by t * base^(-2i/D) at position t."""
        half = self.config.head_dim // 2
        speeds = self.config.rope.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * speeds
        turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), dim=1)
