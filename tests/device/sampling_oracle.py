"""The sampling rules again, one token at a time in plain Python floats: what the device code is judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence

from overdrive.types import SamplingParams

WORD = 2**32


def fmix32(h: int) -> int:
    h ^= h >> 16
    h = h * 0x85EBCA6B % WORD
    h ^= h >> 13
    h = h * 0xC2B2AE35 % WORD
    return h ^ h >> 16


def oracle_noise(seed: int, position: int, token: int) -> float:
    low, high = seed % WORD, (seed >> 32) % WORD
    a = fmix32(low ^ fmix32((position + 0x9E3779B9) % WORD))
    b = fmix32(high ^ fmix32((a + 0x7F4A7C15) % WORD))
    h = fmix32(fmix32((token + a) % WORD) ^ b)
    return -math.log(-math.log1p(-(h + 0.5) / WORD))


def adjusted(logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> list:
    """After penalties, bias and min_tokens; the banned are -inf."""
    out = []
    for token, x in enumerate(logits):
        count = list(output).count(token)
        if count or token in prompt:
            x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
        x -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        x += dict(params.logit_bias).get(token, 0.0)
        out.append(-math.inf if token in params.stop_token_ids and len(output) < params.min_tokens else x)
    return out


def probabilities(x: Sequence[float], params: SamplingParams) -> list[float]:
    """Distribution after temperature and the filters, of adjusted (and masked) logits."""
    x = [value / params.temperature for value in x]
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    kept = order[: params.top_k or len(x)]
    weight = {token: math.exp(x[token] - x[order[0]]) for token in kept}
    total, before, nucleus = sum(weight.values()), 0.0, []
    for token in kept:
        if not nucleus or before < params.top_p * total:
            nucleus.append(token)
        before += weight[token]
    final = {token: weight[token] for token in nucleus if weight[token] >= params.min_p}
    norm = sum(final.values())
    return [final.get(token, 0.0) / norm for token in range(len(x))]


def oracle_draw(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    allowed: Sequence[bool] | None = None,
) -> int:
    """The token at position len(prompt) + len(output)."""
    x = adjusted(logits, params, prompt, output)
    if allowed is not None:
        x = [value if ok else -math.inf for value, ok in zip(x, allowed, strict=True)]
    if params.temperature == 0:
        return x.index(max(x))
    position = len(prompt) + len(output)
    scores = [
        math.log(p) + oracle_noise(params.seed, position, token) if p > 0 else -math.inf
        for token, p in enumerate(probabilities(x, params))
    ]
    return scores.index(max(scores))
