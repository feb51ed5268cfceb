"""What an EAGLE-3 head is, as numbers, read from the config.json of either published layout and written in one.

Layouts: that of SafeAILab's EAGLE and SpecForge (flat, `eagle_config`), and that of speculators (nested
`transformer_layer_config`). Whatever cannot fit the target is refused here, with both sides named. Knows nothing of
weights but their names; must never know a device or the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError
from overdrive.json_text import read_json
from overdrive.model.config import ModelConfig
from overdrive.model.rope import RopeConfig
from overdrive.model.safetensors_folder import SafetensorsFolder

EMBEDDING = "embed_tokens.weight"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_ARCHITECTURES = ("LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_UNSUPPORTED = ("bias", "qkv_bias", "norm_before_fc", "parallel_drafting", "use_sliding_window")
"""Config keys that, when true, change the forward pass in ways this package does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """A head's shape and rules. That it fits its target is checked where it is read from a folder.

    hidden H, mlp F, heads Hq, kv_heads Hkv, head_dim D of the head's layers; vocab: the target's; draft_vocab: ids the
    head can draft. target_hidden: width of a target feature. taps: layers of the target, counted by *input* and
    ascending, whose residual stream the head reads. max_positions: the context the head's file claims; rotary tables
    reach as far as the target's whatever it says.
    norm_before_residual: the layer's residual is the normed feature. norm_output: drafts feed back the final-normed
    output. fc_norm: each tap is normed before fc. own_embedding: token embeddings of its own, not the target's.
    """

    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    vocab: int
    draft_vocab: int
    target_hidden: int
    taps: tuple[int, ...]
    layers: int = 1
    max_positions: int = 2048
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_norm: bool = False
    own_embedding: bool = False

    @classmethod
    def for_target(cls, target: ModelConfig, draft_vocab: int, **changes: Any) -> HeadConfig:
        """The head to train for a target: shaped like one of its layers, reading the default taps.

        Rotary base as the target's, without its stretching rules, which not every engine knows for a head. `changes`
        replace any field.
        """
        fields: dict[str, Any] = {
            "hidden": target.hidden,
            "mlp": target.mlp,
            "heads": target.heads,
            "kv_heads": target.kv_heads,
            "head_dim": target.head_dim,
            "norm_eps": target.norm_eps,
            "rope": RopeConfig(theta=target.rope.theta, original_positions=target.max_positions),
            "vocab": target.vocab,
            "draft_vocab": draft_vocab,
            "target_hidden": target.hidden,
            "taps": default_taps(target.layers),
            "max_positions": target.max_positions,
        }
        config = cls(**(fields | changes))
        check_fit(config, target, "the head")
        return config

    @classmethod
    def from_folder(cls, folder: Path, target: ModelConfig) -> HeadConfig:
        """Read config.json of a head for `target`. Raises OverdriveError, one line naming both sides, for a misfit."""
        raw = read_json(folder / "config.json")
        own_embedding = any(name.removeprefix("model.") == EMBEDDING for name in SafetensorsFolder(folder).shapes)
        return cls.from_json(raw, target, own_embedding, f"head {folder}")

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], target: ModelConfig, own_embedding: bool, name: str) -> HeadConfig:
        """From a parsed config.json. own_embedding: its weights hold an embedding. name: how errors call the head."""
        try:
            speculators = _is_speculators(raw)
            layer = _layer(raw, speculators)
            shape = ModelConfig.from_hf({**layer, "architectures": ["LlamaForCausalLM"]})
            _refuse_unsupported(raw, layer, shape)
            config = cls(
                hidden=shape.hidden,
                mlp=shape.mlp,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                norm_eps=shape.norm_eps,
                rope=shape.rope,
                vocab=shape.vocab,
                draft_vocab=_whole(raw, "draft_vocab_size", shape.vocab),
                target_hidden=_whole(raw, "target_hidden_size", shape.hidden),
                taps=_taps(raw, target.layers),
                layers=shape.layers,
                max_positions=shape.max_positions,
                norm_before_residual=_flag(raw, "norm_before_residual"),
                norm_output=_flag(raw, "norm_output"),
                fc_norm=_flag(raw, "fc_norm"),
                own_embedding=own_embedding,
            )
        except OverdriveError as error:
            raise OverdriveError(f"{name}: {error}") from None
        check_fit(config, target, name)
        return config

    def window(self, layer: int) -> int:
        """How many positions a pair of this layer sees: 0, all of them."""
        return 0

    def to_json(self) -> dict[str, Any]:
        """config.json in SpecForge's layout, as SGLang and vLLM read it.

        Layer ids stand there twice: SGLang reads those in `eagle_config`, counted by output, vLLM the top-level ones,
        counted by input. Both engines know three taps only, and SGLang no norm_before_residual.
        """
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope.theta,
            "rope_scaling": _rope_scaling(self.rope),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab,
            "draft_vocab_size": self.draft_vocab,
            "target_hidden_size": self.target_hidden,
            "norm_before_residual": self.norm_before_residual,
            "norm_output": self.norm_output,
            "fc_norm": self.fc_norm,
            "eagle_config": {"use_aux_hidden_state": True, _LAYER_IDS: [tap - 1 for tap in self.taps]},
            _LAYER_IDS: list(self.taps),
        }


def default_taps(layers: int) -> tuple[int, ...]:
    """Where EAGLE-3 reads a target of this many layers: low, middle, high, counted by input."""
    return 2, layers // 2, layers - 3


def check_fit(config: HeadConfig, target: ModelConfig, name: str) -> None:
    """Refuse a head that was made for another target. Raises OverdriveError naming both sides."""
    made = f"{name} was made for"
    if config.target_hidden != target.hidden:
        raise OverdriveError(f"{made} hidden size {config.target_hidden}; the target has {target.hidden}")
    if config.hidden != target.hidden and not config.own_embedding:
        raise OverdriveError(
            f"{name} has hidden size {config.hidden} and no {EMBEDDING}; the target's embedding has {target.hidden}"
        )
    if config.vocab != target.vocab:
        raise OverdriveError(f"{made} a vocabulary of {config.vocab}; the target has {target.vocab}")
    if config.draft_vocab > target.vocab:
        raise OverdriveError(f"{name} drafts {config.draft_vocab} ids; the target has {target.vocab}")
    taps = config.taps
    if not taps or list(taps) != sorted(set(taps)) or taps[0] < 0 or taps[-1] > target.layers:
        raise OverdriveError(
            f"{name} reads the inputs of layers {list(taps)}, which must ascend within 0 .. {target.layers}, "
            f"as the target has {target.layers} layers"
        )


def _is_speculators(raw: Mapping[str, Any]) -> bool:
    """Which of the two layouts a config has. Raises OverdriveError for any other."""
    kind = raw.get("speculators_model_type")
    if kind is not None:
        if kind != "eagle3":
            raise OverdriveError(f"speculators_model_type {kind!r} is not supported; supported: eagle3")
        return True
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not any(name in _ARCHITECTURES for name in names):
        raise OverdriveError(
            f"unknown layout: neither speculators_model_type nor one of the architectures "
            f"{', '.join(_ARCHITECTURES)}, but {names}"
        )
    return False


def _layer(raw: Mapping[str, Any], speculators: bool) -> Mapping[str, Any]:
    """The part of a config that describes the decoder layers."""
    layer = raw.get("transformer_layer_config") if speculators else raw
    if not isinstance(layer, Mapping):
        raise OverdriveError(f"transformer_layer_config must be an object, not {layer!r}")
    return layer


def _refuse_unsupported(raw: Mapping[str, Any], layer: Mapping[str, Any], shape: ModelConfig) -> None:
    """layer: the part of `raw` that describes the decoder layers, which is all of it in the flat layout."""
    if layer.get("model_type", "llama") != "llama":
        raise OverdriveError(f"layers of type {layer['model_type']!r} are not supported; supported: llama")
    if shape.qkv_bias or shape.output_bias or shape.mlp_bias:
        raise OverdriveError("biases (attention_bias, mlp_bias) are not supported")
    for key in _UNSUPPORTED:
        if raw.get(key) or layer.get(key):
            raise OverdriveError(f"{key} is not supported")
    if raw.get("logit_scale", 1.0) != 1.0:
        raise OverdriveError(f"logit_scale {raw['logit_scale']} is not supported")


def _taps(raw: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Input indices of the tapped layers, from whichever of the two spellings there is.

    SpecForge and SGLang: `eagle_config`'s ids name the layer whose *output* is read, the input of the next one.
    speculators and vLLM: top-level ids are input indices. Off by one would lose acceptance and nothing else.
    """
    eagle = raw.get("eagle_config") or {}
    if not isinstance(eagle, Mapping):
        raise OverdriveError(f"eagle_config must be an object, not {eagle!r}")
    if not eagle.get("use_aux_hidden_state", True):
        raise OverdriveError("use_aux_hidden_state false (an EAGLE head of the first kind) is not supported")
    outputs, inputs = _ids(eagle), _ids(raw)
    from_outputs = tuple(i + 1 for i in outputs)
    if outputs and inputs and from_outputs != inputs:
        raise OverdriveError(
            f"{_LAYER_IDS} {list(inputs)} (by input) contradict {list(outputs)} in eagle_config (by output)"
        )
    return inputs or from_outputs or default_taps(layers)


def _ids(raw: Mapping[str, Any]) -> tuple[int, ...]:
    ids = raw.get(_LAYER_IDS) or []
    if not isinstance(ids, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise OverdriveError(f"{_LAYER_IDS} must be a list of whole numbers, not {ids!r}")
    return tuple(ids)


def _whole(raw: Mapping[str, Any], key: str, default: int) -> int:
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise OverdriveError(f"{key} must be a whole number above 0, not {value!r}")
    return value


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    """False where absent. For norm_before_residual in speculators' layout that is what speculators itself assumes;
    vLLM's loader assumes true. Files written by speculators always state it, so the writer's own default is taken.
    """
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise OverdriveError(f"{key} must be true or false, not {value!r}")
    return bool(value)


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    """`rope_scaling` as `parse_rope` reads it. Raises OverdriveError for rules a config.json cannot say."""
    if rope.divisors:
        raise OverdriveError("rope divisors (from a .gguf file) cannot be written into a head's config.json")
    if rope.kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_positions
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        scaling["attention_factor"] = rope.attention_factor
    return scaling
