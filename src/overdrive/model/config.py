"""What a model is, as numbers: one frozen config for every supported family, read from a Hugging Face config.json.

The families differ in one table (`FAMILIES`); nothing else in the package asks which family a model is of. Knows
nothing of weights or devices. A .gguf file's metadata is first rewritten in config.json's words (gguf.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError
from overdrive.json_text import read_json
from overdrive.model.rope import RopeConfig, parse_rope

MOST, MOST_LAYERS = 1 << 24, 1 << 12
"""Largest sizes believed: a damaged file must end in a message, not in an endless allocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets one architecture apart. A `str` names the config key that decides (absent: no), a `bool` is fixed.

    windows: which config rule gives layers a sliding window: none, all of them, or those from `max_window_layers` on.
    Defaults are those of the reference implementation for a config that leaves the key out; 0 kv_heads means as many
    as query heads, 0 head_dim means hidden_size / heads.
    """

    model_type: str
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    windows: str = "none"
    kv_heads: int = 0
    head_dim: int = 0
    max_positions: int = 2048


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(
        model_type="llama", qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"
    ),
    "MistralForCausalLM": Family(model_type="mistral", windows="all", kv_heads=8, max_positions=131072),
    "Qwen2ForCausalLM": Family(model_type="qwen2", qkv_bias=True, windows="upper", kv_heads=32, max_positions=32768),
    "Qwen3ForCausalLM": Family(
        model_type="qwen3",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        windows="upper",
        kv_heads=32,
        head_dim=128,
        max_positions=32768,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Sampling values the model's authors suggest; a request's own values win. Neutral where they suggest none."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape and rules, checked.

    hidden H, mlp F, heads Hq, kv_heads Hkv, head_dim D, vocab V. windows: per layer, positions a token sees, itself
    included; 0 sees all. max_positions: the longest context the model claims, rope scaling included.
    eos_ids: every id that ends an answer, ascending. bos_id: -1 when the model has none.
    """

    architecture: str
    vocab: int
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    windows: tuple[int, ...] = ()
    eos_ids: tuple[int, ...] = ()
    bos_id: int = -1
    generation: GenerationDefaults = GenerationDefaults()

    def window(self, layer: int) -> int:
        """How many positions a token of this layer sees, itself included; 0 for all of them."""
        return self.windows[layer] if self.windows else 0

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read config.json and, where there is one, generation_config.json. Raises OverdriveError for an odd one."""
        generation = folder / "generation_config.json"
        return cls.from_hf(read_json(folder / "config.json"), read_json(generation) if generation.exists() else {})

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """From a parsed config.json (and generation_config.json). Raises OverdriveError that names what is wrong."""
        architecture = _architecture(raw)
        family = FAMILIES[architecture]
        _refuse_unsupported(raw)
        heads, hidden = _positive(raw, "num_attention_heads"), _positive(raw, "hidden_size")
        layers = _positive(raw, "num_hidden_layers", most=MOST_LAYERS)
        max_positions = _positive(raw, "max_position_embeddings", family.max_positions)
        rope = parse_rope(raw, max_positions, default_theta=10000.0)
        generation = generation or {}
        return cls(
            architecture=architecture,
            vocab=_positive(raw, "vocab_size"),
            hidden=hidden,
            mlp=_positive(raw, "intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=_kv_heads(raw, heads, family),
            head_dim=_head_dim(raw, hidden, heads, family),
            max_positions=_stretched(rope, max_positions),
            norm_eps=_norm_eps(raw),
            rope=rope,
            qkv_bias=_flag(raw, family.qkv_bias),
            output_bias=_flag(raw, family.output_bias),
            mlp_bias=_flag(raw, family.mlp_bias),
            qk_norm=family.qk_norm,
            tied=bool(raw.get("tie_word_embeddings", False)),
            windows=_windows(raw, layers, family),
            eos_ids=tuple(sorted(_ids(raw, "eos_token_id") | _ids(generation, "eos_token_id"))),
            bos_id=min(_ids(raw, "bos_token_id") or _ids(generation, "bos_token_id") or {-1}),
            generation=_generation_defaults(generation),
        )


def _architecture(raw: Mapping[str, Any]) -> str:
    """The supported architecture a config names, by `architectures` or else by `model_type`."""
    names = raw.get("architectures") or []
    by_type = {family.model_type: name for name, family in FAMILIES.items()}
    names = [str(name) for name in (names if isinstance(names, list) else [names])]
    by_name = str(raw.get("model_type"))
    if not names and by_name in by_type:
        return by_type[by_name]
    for name in names:
        if name in FAMILIES:
            return name
    named = " ".join(str(", ".join(names) or raw.get("model_type") or "(none named)").split())
    raise OverdriveError(f"unsupported architecture {named[:200]}; supported: {', '.join(FAMILIES)}")


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    activation = raw.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise OverdriveError(f"config: hidden_act {activation!r} is not supported; supported: silu")
    if raw.get("quantization_config"):
        given = raw["quantization_config"]
        method = given.get("quant_method", "unknown") if isinstance(given, dict) else given
        raise OverdriveError(f"config: {method!r} quantised weights are not supported; take float ones or a .gguf file")


def _positive(raw: Mapping[str, Any], key: str, default: int | None = None, most: int = MOST) -> int:
    value = raw.get(key, default)
    if value is None:
        raise OverdriveError(f"config: {key!r} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise OverdriveError(f"config: {key} must be a whole number above 0, not {value!r}")
    if value > most:
        raise OverdriveError(f"config: {key} {value} is beyond {most}, more than any model has")
    return value


def _kv_heads(raw: Mapping[str, Any], heads: int, family: Family) -> int:
    kv_heads = _positive(raw, "num_key_value_heads", family.kv_heads or heads)
    if heads % kv_heads:
        raise OverdriveError(f"config: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    return kv_heads


def _head_dim(raw: Mapping[str, Any], hidden: int, heads: int, family: Family) -> int:
    if raw.get("head_dim") is None and not family.head_dim and hidden % heads:
        raise OverdriveError(f"config: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    given = raw.get("head_dim")
    head_dim = _positive(raw, "head_dim") if given is not None else family.head_dim or hidden // heads
    if head_dim % 2:
        raise OverdriveError(f"config: head_dim {head_dim} must be even")
    return head_dim


def _norm_eps(raw: Mapping[str, Any]) -> float:
    eps = raw.get("rms_norm_eps", 1e-6)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < 1:
        raise OverdriveError(f"config: rms_norm_eps must be a small positive number, not {eps!r}")
    return float(eps)


def _flag(raw: Mapping[str, Any], rule: bool | str) -> bool:
    return bool(raw.get(rule, False)) if isinstance(rule, str) else rule


def _stretched(rope: RopeConfig, max_positions: int) -> int:
    """YaRN configs may leave `max_position_embeddings` at the unstretched length; the factor says what they reach."""
    reach = max(max_positions, int(rope.original_positions * rope.factor)) if rope.kind == "yarn" else max_positions
    if reach > MOST:
        raise OverdriveError(f"config: rope factor {rope.factor} stretches the context to {reach}, beyond {MOST}")
    return reach


def _windows(raw: Mapping[str, Any], layers: int, family: Family) -> tuple[int, ...]:
    """Window per layer, or () when every layer sees everything."""
    if family.windows == "none" or (family.windows == "upper" and not raw.get("use_sliding_window", False)):
        return ()
    if raw.get("sliding_window", 4096) is None:
        return ()
    window = _positive(raw, "sliding_window", 4096)
    if family.windows == "all":
        return (window,) * layers
    first = raw.get("max_window_layers", 28)
    if not isinstance(first, int):
        raise OverdriveError(f"config: max_window_layers must be a whole number, not {first!r}")
    kinds = raw.get("layer_types") or ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise OverdriveError(f"config: layer_types must give {layers} layers sliding_attention or full_attention")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _ids(raw: Mapping[str, Any], key: str) -> set[int]:
    value = raw.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise OverdriveError(f"config: {key} must be a token id or a list of them, not {value!r}")
    return {i for i in ids if i >= 0}


def _generation_defaults(raw: Mapping[str, Any]) -> GenerationDefaults:
    """Suggested sampling values; null and absent mean neutral."""
    given = {
        key: raw[key] for key in ("temperature", "top_p", "top_k", "repetition_penalty") if raw.get(key) is not None
    }
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MOST:
            raise OverdriveError(f"generation_config: {key} must be a number, not {value!r}")
    return GenerationDefaults(
        temperature=float(given.get("temperature", 1.0)),
        top_p=float(given.get("top_p", 1.0)),
        top_k=int(given.get("top_k", 0)),
        repetition_penalty=float(given.get("repetition_penalty", 1.0)),
    )
