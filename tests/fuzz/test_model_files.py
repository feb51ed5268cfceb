"""A model's files, damaged in any way: read, or refused in one line; never a traceback, and no code is run."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from overdrive.errors import OverdriveError
from overdrive.gguf_file import read_header
from overdrive.model.assemble import expected_shapes
from overdrive.model.config import ModelConfig
from overdrive.model.gguf import GGUFCheckpoint
from overdrive.model.safetensors_folder import SafetensorsCheckpoint
from overdrive.text import load_chat_template, load_tokenizer
from tests.effort import effort
from tests.llm.conftest import CONFIG
from tests.model.gguf_writing import write_gguf
from tests.unit.text.conftest import _add
from tests.unit.text.test_hf import byte_level_core, sentencepiece_core
from tests.unit.text.vocabularies import byte_level_fields, sentencepiece_fields

from .damage import answers, damaged, json_text

GENERATION = {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "eos_token_id": [1, 2]}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: list[dict[str, Any]] = [
    CONFIG,
    {**CONFIG, "rope_scaling": {**ROPE, "original_max_position_embeddings": 64}},
    {**CONFIG, "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}},
    {**CONFIG, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 64},
    {**CONFIG, "architectures": ["Qwen3ForCausalLM"], "head_dim": 8, "layer_types": ["full_attention"] * 2},
    {**CONFIG, "architectures": ["MistralForCausalLM"], "sliding_window": 64, "quantization_config": None},
]
TOKENIZER_CONFIG = {
    "bos_token": {"content": "<s>"},
    "eos_token": "</s>",
    "add_bos_token": True,
    "additional_special_tokens": ["<é>"],
    "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "x"}],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    shapes = expected_shapes(ModelConfig.from_hf({**CONFIG, "vocab_size": 16}))
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def gguf_bytes(folder: Path) -> Iterator[bytes]:
    """A whole model, and two tokenizers."""
    from gguf import GGUFWriter

    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    path = folder / "whole.gguf"
    write_gguf(path, transformers.LlamaForCausalLM(config), "llama", rope_freqs=np.ones(4))
    yield path.read_bytes()
    for fields in (byte_level_fields(), sentencepiece_fields()):
        writer = GGUFWriter(path, "llama")
        for key, value in fields.items():
            _add(writer, key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        yield path.read_bytes()


@pytest.fixture(scope="module")
def ggufs(place: Path) -> list[bytes]:
    return list(gguf_bytes(place))


@effort(1.0)
@given(data=st.data())
def test_gguf_files(place: Path, ggufs: list[bytes], data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(range(len(ggufs))))
    path = place / "damaged.gguf"
    path.write_bytes(data.draw(damaged(ggufs[whole], 4096)))
    answers(lambda: read_header(path))
    tokenizer = answers(lambda: load_tokenizer(path))
    if tokenizer is not None:
        answers(lambda: tokenizer.encode("a é", add_special=True))
        answers(lambda: load_chat_template(path, tokenizer))
    checkpoint = answers(lambda: GGUFCheckpoint(path))
    if checkpoint is not None:
        for name in list(expected_shapes(checkpoint.config))[:4]:
            answers(lambda name=name: checkpoint.tensor(name))


def test_whole_files_are_read(place: Path, ggufs: list[bytes], tensors: dict[str, torch.Tensor]) -> None:
    """Or the laws would hold for readers that refuse everything."""
    path = place / "whole.gguf"
    path.write_bytes(ggufs[0])
    assert GGUFCheckpoint(path).config.hidden == 16
    path.write_bytes(ggufs[1])
    assert load_tokenizer(path).encode("a", add_special=False)
    folder = safetensors_folder(place / "whole", tensors)
    assert SafetensorsCheckpoint(folder, ModelConfig.from_folder(folder)).tensor("model.norm.weight").shape == (32,)


def safetensors_folder(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 16}))
    save_file(tensors, folder / "model.safetensors")
    return folder


@effort(0.5)
@given(data=st.data())
def test_safetensors_files(place: Path, tensors: dict[str, torch.Tensor], data: st.DataObject) -> None:
    folder = place / "weights"
    if not folder.exists():
        safetensors_folder(folder, tensors)
        shutil.copy(folder / "model.safetensors", place / "sound")
    config = ModelConfig.from_folder(folder)
    (folder / "model.safetensors").write_bytes(data.draw(damaged((place / "sound").read_bytes(), 3000)))
    index = {"weight_map": dict.fromkeys(tensors, "model.safetensors")}
    index_file = folder / "model.safetensors.index.json"
    if data.draw(st.booleans()):
        index_file.write_bytes(data.draw(json_text(index)))
    checkpoint = answers(lambda: SafetensorsCheckpoint(folder, config))
    if checkpoint is not None:
        answers(lambda: checkpoint.tensor("model.norm.weight"))
    index_file.unlink(missing_ok=True)


@effort(2.0)
@given(data=st.data())
def test_model_configs(place: Path, data: st.DataObject) -> None:
    folder = place / "config"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(data.draw(json_text(data.draw(st.sampled_from(CONFIGS)))))
    (folder / "generation_config.json").write_bytes(data.draw(st.just(b"{}") | json_text(GENERATION)))
    config = answers(lambda: ModelConfig.from_folder(folder))
    if config is not None and config.layers < 99:
        assert expected_shapes(config)


@effort(1.0)
@given(data=st.data())
def test_tokenizer_files(place: Path, data: st.DataObject) -> None:
    folder = place / "tokenizer"
    folder.mkdir(exist_ok=True)
    core = data.draw(st.sampled_from([byte_level_core, sentencepiece_core]))()
    text = core.to_str()
    changing = data.draw(st.sampled_from(["both", "tokenizer", "config"]))
    told = data.draw(json_text(json.loads(text))) if changing != "config" else text.encode()
    (folder / "tokenizer.json").write_bytes(told)
    config = (
        data.draw(json_text(TOKENIZER_CONFIG)) if changing != "tokenizer" else json.dumps(TOKENIZER_CONFIG).encode()
    )
    (folder / "tokenizer_config.json").write_bytes(config)
    tokenizer = answers(lambda: load_tokenizer(folder))
    if tokenizer is not None:
        answers(lambda: tokenizer.encode("a é", add_special=True))
        answers(lambda: load_chat_template(folder, tokenizer))


class Trap:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(OverdriveError):
        SafetensorsCheckpoint(tmp_path, ModelConfig.from_folder(tmp_path))
    assert not (tmp_path / "ran").exists()
