"""Rotary position embedding: which frequencies a config asks for, and the cosine and sine tables made from them.

Knows the scaling rules default, linear, llama3 and yarn; knows nothing of layers or attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from overdrive.errors import OverdriveError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_SLICE = 1 << 16
_REQUIRED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions turn into angles. Fields a `kind` does not use keep their defaults.

    original_positions: positions the model was trained on before its context was stretched (llama3, yarn).
    attention_factor: scales cosine and sine (yarn), 1 elsewhere.
    divisors: [D/2] extra divisors of the frequencies, as some .gguf files carry them; empty for none.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()


def parse_rope(raw: Mapping[str, Any], max_positions: int, default_theta: float) -> RopeConfig:
    """The rope part of a config.json, in either spelling.

    `rope_theta` beside `rope_scaling` (with `rope_type` or the older `type`), or both inside `rope_parameters`.
    Raises OverdriveError for a rule not in ROPE_TYPES and for missing or impossible numbers.
    """
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise OverdriveError(f"config: rope_scaling must be an object, not {scaling!r}")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise OverdriveError(f"config: rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    if float(scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise OverdriveError("config: partial_rotary_factor other than 1 is not supported")
    theta = _number(scaling if "rope_theta" in scaling else raw, "rope_theta", default_theta)
    for key in _REQUIRED.get(kind, ()):
        if scaling.get(key) is None:
            raise OverdriveError(f"config: rope type {kind!r} needs {key!r}")
    factor = _number(scaling, "factor", 1.0)
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_positions=int(_original_positions(raw, scaling, max_positions)),
        low_freq_factor=_number(scaling, "low_freq_factor", 1.0),
        high_freq_factor=_number(scaling, "high_freq_factor", 4.0),
        beta_fast=_number(scaling, "beta_fast", 32.0),
        beta_slow=_number(scaling, "beta_slow", 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_yarn_attention_factor(scaling, factor) if kind == "yarn" else 1.0,
        divisors=tuple(float(d) for d in raw.get("rope_divisors", ())),
    )


def _original_positions(raw: Mapping[str, Any], scaling: Mapping[str, Any], max_positions: int) -> float:
    key = "original_max_position_embeddings"
    return _number(scaling if scaling.get(key) else raw, key, max_positions)


def _number(raw: Mapping[str, Any], key: str, default: float) -> float:
    value = raw.get(key)
    if value is None:
        return float(default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise OverdriveError(f"config: {key} must be a number above 0, not {value!r}")
    return float(value)


def _yarn_attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    """Magnitude correction of YaRN (Peng et al. 2023, eq. 22), with the `mscale` pair some checkpoints add."""
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor", 1.0)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1.0)


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each rotated pair, [D/2] float64, scaling included; OverdriveError for unfit divisors."""
    base = rope.theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope.divisors:
        if len(rope.divisors) != len(base):
            raise OverdriveError(f"{len(rope.divisors)} rope divisors do not fit {len(base)} rotary pairs")
        base = base / torch.tensor(rope.divisors, dtype=torch.float64)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "llama3":
        return _llama3(base, rope)
    if rope.kind == "yarn":
        return _yarn(base, rope, head_dim)
    return base


def _llama3(base: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, the band between them blended."""
    turns = rope.original_positions * base / (2 * math.pi)  # full turns within the original context
    keep = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return base * (keep + (1 - keep) / rope.factor)


def _yarn(base: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    """YaRN, "NTK by parts": pairs that turn more than `beta_fast` times are kept, less than `beta_slow` stretched."""

    def pair_with_turns(turns: float) -> float:
        return head_dim * math.log(rope.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_with_turns(rope.beta_fast), pair_with_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # Equal bounds would divide by zero; the published code widens them by the same thousandth.
    width = high - low or 0.001
    stretch = ((torch.arange(head_dim // 2, dtype=torch.float64) - low) / width).clamp(0.0, 1.0)
    return base * (1 - stretch) + base / rope.factor * stretch


def rope_tables(rope: RopeConfig, head_dim: int, positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, two of [positions, D/2], computed in float64 and rounded once."""
    per_position = frequencies(rope, head_dim)
    cos, sin = (torch.empty((positions, head_dim // 2), dtype=dtype) for _ in range(2))
    for start in range(0, positions, _SLICE):  # the angles of a million positions would be large in float64
        end = min(start + _SLICE, positions)
        angles = torch.outer(torch.arange(start, end, dtype=torch.float64), per_position)
        cos[start:end] = angles.cos() * rope.attention_factor
        sin[start:end] = angles.sin() * rope.attention_factor
    return cos, sin
