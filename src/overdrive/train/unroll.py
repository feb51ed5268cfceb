"""The EAGLE-3 head over whole conversations, unrolled as drafting will run it (training-time test, Li et al. 2025).

At step i and index t the head reads the pair (what it has, token x[t+1+i]), where what it has is the target's fused
feature at step 0 and its own output of step i-1 after that, and its output predicts x[t+2+i]. That is a chain of drafts
from every index at once:

    pair seen at     step 0: indices 0 .. t      steps 1 .. i: index t alone
    rope position            0 .. t                            t+1 .. t+i

so attention is causal over step 0's keys, and beside them has the diagonal of each later step. Plain torch, functional
in the weights (named as in draft/eagle3/checkpoint.py); must never know the target, a loss or an optimiser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.draft.eagle3.config import HeadConfig
from overdrive.train.options import MAX_STEPS

OWN = MAX_STEPS  # columns kept beside step 0's keys for the diagonals: a multiple of 8 keeps rows of scores aligned
LAYER = "layers.0."
ATTENTION, MLP = LAYER + "self_attn.", LAYER + "mlp."

Weights = Mapping[str, Tensor]


class Tables(NamedTuple):
    """Cosine and sine of rotary angles, two of [positions, D/2]."""

    cos: Tensor
    sin: Tensor


class Step(NamedTuple):
    """What one unrolled step adds for the ones after it: keys and values [B, Hkv, 1, S, D], position-encoded."""

    k: Tensor
    v: Tensor


class Real(NamedTuple):
    """Keys and values of step 0 with OWN empty columns behind them, and which scores are not to be seen.

    k, v: [B * Hkv, S + OWN, D]. blocked: bool [S, S + OWN], True above the diagonal and in the empty columns.
    """

    k: Tensor
    v: Tensor
    blocked: Tensor


def unroll(
    config: HeadConfig, weights: Weights, embedded: Tensor, taps: Tensor, tables: Tables, steps: int
) -> Iterator[Tensor]:
    """The normed output of each step in turn, [B, S, H]; `lm_head` of it scores x[t+2+i] at index t.

    embedded: [B, S, E], the embedding of every token. taps: [B, S, 3 * target_hidden]. tables reach S + steps - 1.
    Indices whose token x[t+1+i] lies beyond S read a zero in its place; nothing of them is worth using.
    """
    if steps > OWN:
        raise ValueError(f"at most {OWN} steps can be unrolled, not {steps}")
    width, hidden = embedded.shape[1], config.hidden
    qkv = torch.cat([weights[f"{ATTENTION}{name}_proj.weight"] for name in "qkv"])  # [(Hq + 2 Hkv) * D, E + H]
    words = _norm(embedded, weights[LAYER + "input_layernorm.weight"], config)
    # A token's part of q, k and v does not depend on the step that reads it: one product serves all of them.
    words = F.pad(F.linear(words, qkv[:, :-hidden]), (0, 0, 0, steps))  # [B, S + steps, ...]
    a, real, own = fuse(config, weights, taps), None, list[Step]()
    for i in range(steps):
        h = _norm(a, weights[LAYER + "hidden_norm.weight"], config)
        projected = words[:, 1 + i : 1 + i + width] + F.linear(h, qkv[:, -hidden:])
        q, step = _heads(config, projected, Tables(tables.cos[i : i + width], tables.sin[i : i + width]))
        if real is None:
            real = _real(step)
        else:
            own.append(step)
        attended = F.linear(attend(q, real, own), weights[ATTENTION + "o_proj.weight"])
        r = (h if config.norm_before_residual else a) + attended
        a = r + _mlp(weights, _norm(r, weights[LAYER + "post_attention_layernorm.weight"], config))
        normed = _norm(a, weights["norm.weight"], config)
        yield normed
        a = normed if config.norm_output else a


def fuse(config: HeadConfig, weights: Weights, taps: Tensor) -> Tensor:
    """The target's feature g: [..., 3 * target_hidden] -> [..., H]."""
    if config.fc_norm:
        parts = taps.chunk(len(config.taps), dim=-1)
        normed = [_norm(part, weights[f"fc_norm.{n}.weight"], config) for n, part in enumerate(parts)]
        taps = torch.cat(normed, dim=-1)
    return F.linear(taps, weights["fc.weight"])


def attend(q: Tensor, real: Real, own: list[Step]) -> Tensor:
    """One softmax over step 0's keys up to t and the own keys of index t: q [B, Hkv, G, S, D] -> [B, S, Hq * D]."""
    b, kv_heads, group, s, d = q.shape
    flat = (b * kv_heads, group * s)
    scores = (q.reshape(*flat, d) @ real.k.transpose(1, 2)).view(b, kv_heads, group, s, s + OWN)
    scores = scores.masked_fill_(real.blocked, float("-inf"))
    if own:
        scores[..., s : s + len(own)] = torch.stack([(q * step.k).sum(-1) for step in own], dim=-1)
    shares = scores.softmax(-1)
    out = (shares.view(*flat, s + OWN) @ real.v).view(q.shape)
    for n, step in enumerate(own):
        out = out + shares[..., s + n, None] * step.v
    return out.permute(0, 3, 1, 2, 4).reshape(b, s, kv_heads * group * d)


def _heads(config: HeadConfig, projected: Tensor, tables: Tables) -> tuple[Tensor, Step]:
    """Split, position-encode: [B, S, (Hq + 2 Hkv) * D] -> q [B, Hkv, G, S, D], scaled for scores; keys and values."""
    b, s, _ = projected.shape
    heads, kv_heads, d = config.heads, config.kv_heads, config.head_dim
    split = projected.view(b, s, heads + 2 * kv_heads, d).transpose(1, 2)  # [B, heads, S, D]
    q, k, v = split.split_with_sizes((heads, kv_heads, kv_heads), dim=1)
    q, k = _rotate(q, tables) * d**-0.5, _rotate(k, tables)
    return q.view(b, kv_heads, heads // kv_heads, s, d), Step(k.unsqueeze(2), v.unsqueeze(2))


def _rotate(x: Tensor, tables: Tables) -> Tensor:
    """x [B, heads, S, D]: pair (i, i + D/2) turned by the angle of its position; a new, contiguous tensor."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = tables
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).contiguous()


def _real(step: Step) -> Real:
    k, v = (F.pad(x.squeeze(2), (0, 0, 0, OWN)).flatten(0, 1) for x in step)
    s = step.k.shape[3]
    blocked = torch.ones((s, s + OWN), dtype=torch.bool, device=step.k.device).triu(1)
    return Real(k, v, blocked)


def _mlp(weights: Weights, x: Tensor) -> Tensor:
    gate, up = F.linear(x, weights[MLP + "gate_proj.weight"]), F.linear(x, weights[MLP + "up_proj.weight"])
    return F.linear(F.silu(gate) * up, weights[MLP + "down_proj.weight"])


def _norm(x: Tensor, weight: Tensor, config: HeadConfig) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, config.norm_eps)
