"""Writes a transformers model as a .gguf file, the way ggml's converter does, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType

TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The converter's row order for Llama's q and k: rotary pairs side by side."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def ggml_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{suffix}"


def write_gguf(
    path: Path, model: Any, arch: str, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **extra: Any
) -> None:
    """Write `model` to `path` with matrices as `kind`; its own weights become what the file then means.

    extra: further metadata under the architecture's prefix (numbers or strings), or a tensor named rope_freqs.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(2)
    writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    freqs = extra.pop("rope_freqs", None)
    for key, value in extra.items():
        put = writer.add_string if isinstance(value, str) else writer.add_float32
        put(f"{arch}.{key}", value)
    if freqs is not None:
        writer.add_tensor("rope_freqs.weight", freqs.astype(np.float32))
    for name, parameter in model.named_parameters():
        add_weight(writer, config, arch, name, parameter, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def add_weight(
    writer: gguf.GGUFWriter, config: Any, arch: str, name: str, parameter: torch.Tensor, kind: GGMLQuantizationType
) -> None:
    values = parameter.numpy().copy()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    rotated = next((n for part, n in heads.items() if f".{part}." in name), 0) if arch == "llama" else 0
    if kind == GGMLQuantizationType.F32 or values.ndim == 1:
        writer.add_tensor(ggml_name(name), interleave(values, rotated) if rotated else values)
        return
    # Rows are quantised one by one, so the order of rows and quantisation do not matter to each other.
    blocks = gguf.quantize(values, kind)
    parameter.copy_(torch.from_numpy(gguf.dequantize(blocks, kind).reshape(values.shape)))
    writer.add_tensor(ggml_name(name), interleave(blocks, rotated) if rotated else blocks, raw_dtype=kind)
