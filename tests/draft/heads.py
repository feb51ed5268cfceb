"""Heads in folders that imitate published ones: their key names, their configs, tiny shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.loading import random_tensors
from overdrive.model.config import ModelConfig
from overdrive.model.dummy import tiny_config
from overdrive.model.rope import RopeConfig

DRAFTED = torch.tensor([1, 2, 3, 5, 8, 13, 21, 34, 40, 41, 42, 60])


def target_config(**changes: Any) -> ModelConfig:
    """A target deep enough for the default taps, (2, 4, 5), whose rotary base is not a head's default."""
    return tiny_config(**({"layers": 8, "rope": RopeConfig(theta=500000.0)} | changes))


def tiny_head(target: ModelConfig, **changes: Any) -> HeadConfig:
    """A small head for `target` with a reduced vocabulary and its own rotary base."""
    rope = RopeConfig(theta=10000.0, original_positions=target.max_positions)
    fields = {"mlp": 48, "head_dim": 6, "rope": rope, "norm_eps": 1e-5}
    return HeadConfig.for_target(target, **({"draft_vocab": len(DRAFTED)} | fields | changes))


def rounded_tensors(config: HeadConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights by canonical name, exact in bf16; a reduced vocabulary is DRAFTED."""
    tensors = random_tensors(config, seed)
    ids = {"d2t": DRAFTED - torch.arange(len(DRAFTED))} if "d2t" in tensors else {}
    return {name: tensor.bfloat16().float() for name, tensor in tensors.items() if name != "d2t"} | ids


def safeai_config(config: HeadConfig) -> dict[str, Any]:
    """As yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: a plain Llama config; no rope_theta, no head_dim, no layer ids."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "initializer_range": 0.02,
        "intermediate_size": config.mlp,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.28.1",
        "use_cache": True,
        "vocab_size": config.vocab,
        "draft_vocab_size": config.draft_vocab,
    }


def specforge_config(config: HeadConfig) -> dict[str, Any]:
    """As SpecForge's: head_dim, and layer ids counted by output inside eagle_config."""
    return safeai_config(config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "head_dim": config.head_dim,
        "mlp_bias": False,
        "rope_scaling": None,
        "rope_theta": config.rope.theta,
        "target_hidden_size": config.target_hidden,
        "torch_dtype": "bfloat16",
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in config.taps],
        },
    }


def speculators_config(config: HeadConfig) -> dict[str, Any]:
    """As RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3: layers and verifier nested, layer ids counted by input."""
    return {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": config.draft_vocab,
        "eagle_aux_hidden_state_layer_ids": list(config.taps),
        "norm_before_residual": config.norm_before_residual,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "meta-llama/Llama-3.1-8B-Instruct"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.2.0",
        "target_hidden_size": None,
        "torch_dtype": "float32",
        "transformer_layer_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "hidden_size": config.hidden,
            "intermediate_size": config.mlp,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": config.heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": config.kv_heads,
            "rms_norm_eps": config.norm_eps,
            "rope_scaling": {
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "use_cache": True,
            "vocab_size": config.vocab,
        },
        "transformers_version": "4.57.0",
    }


def save_head(folder: Path, raw: dict[str, Any], tensors: dict[str, Tensor], prefix: str) -> Path:
    """Write config.json and model.safetensors with the layer under `prefix`, and t2d beside d2t."""
    stored = {name.replace("layers.0.", prefix, 1): tensor.contiguous() for name, tensor in tensors.items()}
    if "d2t" in stored and "t2d" not in stored:
        stored["t2d"] = torch.zeros(raw.get("vocab_size", 64), dtype=torch.bool)
        stored["t2d"][DRAFTED] = True
    folder.mkdir(exist_ok=True)
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return folder
