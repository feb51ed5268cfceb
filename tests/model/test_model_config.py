"""ModelConfig: what config.json may say, in every spelling, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overdrive.errors import OverdriveError
from overdrive.model.config import ModelConfig

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rope_theta": 5000.0,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}


def of(architecture: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_hf(RAW | {"architectures": [architecture]} | changes)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "yarn", **YARN}},
        {"rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, **YARN}, "rope_theta": None},
    ],
)
def test_every_spelling_of_rope_scaling_means_the_same(spelling: dict[str, Any]):
    assert of("LlamaForCausalLM", **spelling) == of("LlamaForCausalLM", rope_scaling={"rope_type": "yarn", **YARN})
    config = of("LlamaForCausalLM", **spelling)
    assert (config.rope.kind, config.rope.theta, config.max_positions) == ("yarn", 5000.0, 4096)


def test_windows_follow_each_familys_rule():
    window = {"sliding_window": 16}
    upper = {**window, "use_sliding_window": True, "max_window_layers": 3}
    assert of("LlamaForCausalLM", **window).windows == ()
    assert of("MistralForCausalLM", **window).windows == (16,) * 4
    assert of("MistralForCausalLM", sliding_window=None).windows == ()
    assert of("Qwen2ForCausalLM", **window).windows == ()
    assert of("Qwen2ForCausalLM", **upper).windows == (0, 0, 0, 16)
    kinds = ["sliding_attention", "full_attention"] * 2
    assert of("Qwen3ForCausalLM", **upper, layer_types=kinds).windows == (16, 0, 16, 0)
    assert of("Qwen3ForCausalLM", **upper, layer_types=kinds).window(2) == 16


def test_families_differ_in_biases_norms_and_head_width():
    llama, qwen2, qwen3 = (of(f"{name}ForCausalLM") for name in ("Llama", "Qwen2", "Qwen3"))
    assert (llama.qkv_bias, qwen2.qkv_bias, qwen2.output_bias) == (False, True, False)
    assert of("LlamaForCausalLM", attention_bias=True).output_bias
    assert (qwen3.qk_norm, qwen3.head_dim, llama.head_dim) == (True, 128, 8)
    assert (
        ModelConfig.from_hf({k: v for k, v in RAW.items() if k != "architectures"} | {"model_type": "llama"}) == llama
    )


def test_end_ids_and_defaults_come_from_both_files(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(RAW | {"eos_token_id": 7, "bos_token_id": 3}))
    suggested = {"eos_token_id": [9, 7], "temperature": 0.6, "top_k": 20, "top_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(suggested))
    config = ModelConfig.from_folder(tmp_path)
    assert (config.eos_ids, config.bos_id) == ((7, 9), 3)
    assert (config.generation.temperature, config.generation.top_k, config.generation.top_p) == (0.6, 20, 1.0)
    assert (of("LlamaForCausalLM").eos_ids, of("LlamaForCausalLM").bos_id) == ((), -1)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "unsupported architecture GPT2LMHeadModel; supported: LlamaForCausalLM, ",
        ),
        ({"architectures": None, "model_type": "mamba"}, "unsupported architecture mamba"),
        ({"architectures": None}, r"unsupported architecture \(none named\)"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope type 'longrope' is not supported; supported: default, linear",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope type 'linear' needs 'factor'"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor must be a number above 0"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ({"rope_theta": -1}, "rope_theta must be a number above 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": 66}, "hidden_size 66 is no multiple of num_attention_heads 8"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim 7 must be even"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number above 0"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers 2147483648 is beyond 4096"),
        ({"max_position_embeddings": 1 << 31}, "max_position_embeddings 2147483648 is beyond"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' quantised weights are not supported"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
    ],
)
def test_an_odd_config_is_one_line_that_names_the_fault(changes: dict[str, Any], pattern: str):
    with pytest.raises(OverdriveError, match=pattern) as error:
        ModelConfig.from_hf(RAW | changes)
    assert "\n" not in str(error.value)


def test_files_that_are_no_json_object_are_named(tmp_path: Path):
    for content, pattern in (("{", "is not valid JSON"), ("[1]", "holds no JSON object")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(OverdriveError, match=rf"config\.json {pattern}"):
            ModelConfig.from_folder(tmp_path)
    with pytest.raises(OverdriveError, match=r"cannot read .*config\.json: No such file"):
        ModelConfig.from_folder(tmp_path / "nowhere")
