"""Every supported family against transformers, on tiny random checkpoints: logits within 1e-4 in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from overdrive.config import ModelOptions
from overdrive.model.transformer import Transformer
from overdrive.model.weights import load
from tests.model.paged import paged_logits

transformers = pytest.importorskip("transformers")

BASE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 12}),
    "llama-mha": ("Llama", {"num_key_value_heads": 4}),
    "llama-linear": ("Llama", {"rope_scaling": {"type": "linear", "factor": 2.5}}),
    "llama-llama3": ("Llama", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}}),
    "llama-yarn": ("Llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen2-yarn": (
        "Qwen2",
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16}},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied-bias": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
}


def save(folder: Path, family: str, changes: dict[str, Any], shard: str = "5GB") -> Any:
    """A random transformers model, saved into `folder`; every parameter differs from its usual start."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(BASE | changes), attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(
                1.0 if "norm" in name else 0.0, 0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            )
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def load_float32(path: Path) -> Transformer:
    options = ModelOptions(precision="float32")
    return load(str(path), options, torch.device("cpu"), lambda label, done, total: None).transformer


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 96, (n,), generator=generator).tolist() for n in (40, 9, 150)]


@torch.inference_mode()
def reference_logits(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_logits_agree_with_transformers(case: str, tmp_path: Path):
    reference = save(tmp_path, *CASES[case])
    model = load_float32(tmp_path)
    ours = paged_logits(model, sequences(), page_size=8, chunk=64)
    for ids, logits in zip(sequences(), ours, strict=True):
        torch.testing.assert_close(logits, reference_logits(reference, ids), rtol=0, atol=1e-4)
