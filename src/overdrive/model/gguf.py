"""Weights and config of a .gguf file, in the names and row order of Hugging Face checkpoints.

Knows ggml's tensor names, metadata keys and the row order its Llama converter leaves; the quantised formats themselves
are the gguf package's business. Raw blocks are handed on as they are, so a packed kernel can be exact on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from overdrive.errors import OverdriveError
from overdrive.gguf_file import GGUFHeader, TensorInfo, read_header
from overdrive.model.assemble import check_tensors, expected_shapes
from overdrive.model.config import ModelConfig

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_IN_LAYER = {
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
_PLAIN = {
    GGMLQuantizationType.F32: (np.float32, torch.float32),
    GGMLQuantizationType.F16: (np.float16, torch.float16),
    GGMLQuantizationType.BF16: (np.int16, torch.bfloat16),
    GGMLQuantizationType.F64: (np.float64, torch.float64),
}


@dataclass(frozen=True, slots=True, eq=False)
class GGUFBlocks:
    """A quantised matrix as the file has it. data: [out, bytes per row] uint8. columns: its width `in`."""

    data: np.ndarray
    kind: GGMLQuantizationType
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.data), self.columns

    def dense(self) -> Tensor:
        """The weight [out, in] in float32, as ggml's reference dequantisation has it."""
        return torch.from_numpy(dequantize(self.data, self.kind).reshape(self.shape))

    def stacked(self, below: Sequence[GGUFBlocks]) -> GGUFBlocks:
        """This matrix with others of its kind and width below it."""
        return GGUFBlocks(np.concatenate([self.data, *(b.data for b in below)]), self.kind, self.columns)


class GGUFCheckpoint:
    """`Checkpoint` over a mapped .gguf file. config: what its metadata and tensors say the model is.

    Raises OverdriveError that names file and tensor for what is missing, cut off or of the wrong shape.
    """

    config: ModelConfig

    def __init__(self, path: Path) -> None:
        self._header = read_header(path)
        # The base class: memmap pays Python for every view, and there are hundreds of thousands of them.
        self._bytes = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        self._rotated = self._header.metadata.get("general.architecture") == "llama"
        self.config = self._read_config()
        expected = {_ggml_name(name): shape for name, shape in expected_shapes(self.config).items()}
        found = {name: info.dims[::-1] for name, info in self._header.tensors.items()}
        check_tensors(lambda name: path, expected, found, redundant=("rope_freqs.weight",))

    def _read_config(self) -> ModelConfig:
        raw = config_words(self._header)
        if "rope_freqs.weight" in self._header.tensors:
            raw["rope_divisors"] = self._plain("rope_freqs.weight").tolist()
        try:
            return ModelConfig.from_hf(raw)
        except OverdriveError as error:
            raise OverdriveError(f"{self._header.path}: {error}") from None

    def tensor(self, name: str) -> Tensor:
        weight = self.matrix(name)
        return weight if isinstance(weight, Tensor) else weight.dense()

    def matrix(self, name: str) -> Tensor | GGUFBlocks:
        weight = self._weight(_ggml_name(name))
        heads = self._interleaved_heads(name)
        if not heads:
            return weight
        if isinstance(weight, Tensor):
            return weight[torch.from_numpy(half_split_rows(len(weight), heads))]
        return GGUFBlocks(weight.data[half_split_rows(len(weight.data), heads)], weight.kind, weight.columns)

    def _interleaved_heads(self, name: str) -> int:
        """Heads whose rows ggml's Llama converter interleaved in this tensor; 0 when it left the rows alone."""
        if not self._rotated:
            return 0
        if ".q_proj." in name:
            return self.config.heads
        return self.config.kv_heads if ".k_proj." in name else 0

    def _weight(self, name: str) -> Tensor | GGUFBlocks:
        info = self._header.tensors[name]
        kind = _kind(info, name, self._header.path)
        if kind in _PLAIN:
            return self._plain(name)
        rows = prod(info.dims[1:])
        return GGUFBlocks(self._raw(name, info, kind).reshape(rows, -1), kind, info.dims[0])

    def _plain(self, name: str) -> Tensor:
        info = self._header.tensors[name]
        kind = _kind(info, name, self._header.path)
        if kind not in _PLAIN:
            raise OverdriveError(f"{self._header.path}: tensor {name} must not be quantised, and is {kind.name}")
        stored, dtype = _PLAIN[kind]
        values = np.array(self._raw(name, info, kind)).view(stored)  # a copy: the file is mapped read-only
        return torch.from_numpy(values).view(dtype).reshape(info.dims[::-1])

    def _raw(self, name: str, info: TensorInfo, kind: GGMLQuantizationType) -> np.ndarray:
        """The tensor's bytes, still in the mapped file."""
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        path = self._header.path
        if not info.dims or info.dims[0] % per_block:
            raise OverdriveError(f"{path}: tensor {name} of shape {list(info.dims)} does not fit {kind.name} blocks")
        end = info.start + prod(info.dims) // per_block * block_bytes
        if end > self._header.size:
            raise OverdriveError(f"{path} is cut off: tensor {name} ends at byte {end:,} of {self._header.size:,}")
        return self._bytes[info.start : end]


def half_split_rows(rows: int, heads: int) -> np.ndarray:
    """Row order [rows] that turns interleaved rotary pairs (0,1)(2,3).. of each head back into (i, i + D/2)."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _kind(info: TensorInfo, name: str, path: Path) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(info.kind)
    except ValueError:
        raise OverdriveError(f"{path}: tensor {name} has the unknown ggml type {info.kind}") from None


def _ggml_name(name: str) -> str:
    """ggml's name of a Hugging Face tensor, e.g. blk.3.attn_q.weight."""
    stem, suffix = name.rsplit(".", 1)
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    _model, _layers, index, part = stem.split(".", 3)
    return f"blk.{index}.{_IN_LAYER[part]}.{suffix}"


def config_words(header: GGUFHeader) -> dict[str, Any]:
    """The file's metadata in the words of a config.json, so that one reader checks both."""
    meta, path = header.metadata, header.path
    arch = str(meta.get("general.architecture"))
    if arch not in ARCHITECTURES or meta.get(f"{arch}.expert_count"):
        named = f"{arch} with experts" if arch in ARCHITECTURES else arch
        raise OverdriveError(f"{path}: unsupported architecture {named}; supported: {', '.join(ARCHITECTURES)}")

    def get(key: str) -> Any:
        return meta.get(f"{arch}.{key}")

    embedding = header.tensors.get("token_embd.weight")
    raw = {
        "architectures": [ARCHITECTURES[arch]],
        "vocab_size": embedding.dims[-1] if embedding and embedding.dims else get("vocab_size"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv") or get("attention.head_count"),
        "head_dim": get("attention.key_length") or get("rope.dimension_count"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base"),
        "rope_scaling": _rope_scaling(get),
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_ids(meta),
    }
    if get("attention.sliding_window"):
        window = {"sliding_window": get("attention.sliding_window"), "use_sliding_window": True, "max_window_layers": 0}
        raw |= window | ({"architectures": ["MistralForCausalLM"]} if arch == "llama" else {})
    return {key: value for key, value in raw.items() if value is not None}


def _end_ids(meta: Mapping[str, Any]) -> list[int]:
    """Ids the file marks as ending a text, a turn or a message."""
    found = (meta.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    return sorted({i for i in found if isinstance(i, int)})


def _rope_scaling(get: Any) -> dict[str, Any] | None:
    kind = get("rope.scaling.type")
    if kind in (None, "none") or not get("rope.scaling.factor"):
        return None
    scaling = {
        "rope_type": kind,
        "factor": get("rope.scaling.factor"),
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
        "beta_fast": get("rope.scaling.yarn_beta_fast"),
        "beta_slow": get("rope.scaling.yarn_beta_slow"),
    }
    return {key: value for key, value in scaling.items() if value is not None}
