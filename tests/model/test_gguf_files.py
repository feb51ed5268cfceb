"""The .gguf loader: files written as ggml's converter writes them mean the same model; damaged ones say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.gguf_file import read_header
from overdrive.model.config import ModelConfig
from overdrive.model.gguf import GGUFCheckpoint
from overdrive.model.rope import frequencies
from overdrive.model.weights import load
from tests.model.gguf_writing import write_gguf
from tests.model.paged import paged_logits
from tests.model.test_families import LLAMA3, load_float32, reference_logits, save, sequences

BLOCKS = {"hidden_size": 64, "intermediate_size": 96}


def agree(path: Path, reference: Any) -> None:
    model = load_float32(path)
    for ids, logits in zip(sequences(), paged_logits(model, sequences(), page_size=8), strict=True):
        torch.testing.assert_close(logits, reference_logits(reference, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "arch", "changes"),
    [
        ("Llama", "llama", {}),
        ("Llama", "llama", {"tie_word_embeddings": True}),
        ("Llama", "llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
        ("Qwen2", "qwen2", {}),
        ("Qwen3", "qwen3", {"head_dim": 16}),
    ],
)
def test_a_file_means_the_model_it_was_written_from(family: str, arch: str, changes: dict[str, Any], tmp_path: Path):
    reference = save(tmp_path, family, changes)
    write_gguf(tmp_path / "m.gguf", reference, arch)
    agree(tmp_path / "m.gguf", reference)


@pytest.mark.parametrize("kind", [GGMLQuantizationType[k] for k in ("Q8_0", "Q4_1", "Q4_0", "Q5_1", "F16", "BF16")])
def test_quantised_blocks_mean_what_the_gguf_package_says(kind: GGMLQuantizationType, tmp_path: Path):
    reference = save(tmp_path, "Llama", BLOCKS)
    write_gguf(tmp_path / "m.gguf", reference, "llama", kind)
    agree(tmp_path / "m.gguf", reference)


def test_rope_scaling_by_metadata(tmp_path: Path):
    linear = save(tmp_path, "Llama", {"rope_scaling": {"type": "linear", "factor": 2.0}})
    write_gguf(tmp_path / "m.gguf", linear, "llama", **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
    agree(tmp_path / "m.gguf", linear)


def test_rope_scaling_by_a_tensor_of_divisors(tmp_path: Path):
    reference = save(tmp_path, "Llama", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}})
    config = ModelConfig.from_folder(tmp_path)
    plain = ModelConfig.from_hf({**reference.config.to_dict(), "rope_parameters": {"rope_theta": config.rope.theta}})
    divisors = frequencies(plain.rope, 8) / frequencies(config.rope, 8)
    assert divisors.max() > 1.5
    write_gguf(tmp_path / "m.gguf", reference, "llama", rope_freqs=divisors.numpy())
    agree(tmp_path / "m.gguf", reference)


def test_header_agrees_with_the_gguf_package(tmp_path: Path):
    write_gguf(tmp_path / "m.gguf", save(tmp_path, "Llama", BLOCKS), "llama", GGMLQuantizationType.Q8_0)
    ours, theirs = read_header(tmp_path / "m.gguf"), gguf.GGUFReader(tmp_path / "m.gguf")
    assert {t.name: (t.data_offset, tuple(t.shape), t.tensor_type) for t in theirs.tensors} == {
        name: (info.start, info.dims, info.kind) for name, info in ours.tensors.items()
    }
    assert ours.metadata == {key: f.contents() for key, f in theirs.fields.items() if not key.startswith("GGUF.")}


def test_every_cut_of_a_file_is_one_clear_line(tmp_path: Path):
    path = tmp_path / "m.gguf"
    write_gguf(path, save(tmp_path, "Llama", {"num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 16}), "llama")
    whole = path.read_bytes()
    for length in [0, 3, 4, 20, 100, 400, 1000, len(whole) - 40]:
        path.write_bytes(whole[:length])
        with pytest.raises(OverdriveError, match=r"m\.gguf") as error:
            load_float32(path)
        assert "\n" not in str(error.value)


def test_errors_name_file_and_tensor(tmp_path: Path):
    reference = save(tmp_path, "Llama", {})
    path = tmp_path / "m.gguf"
    write_gguf(path, reference, "llama")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.attn_v.weight", b"blk.1.attn_x.weight"))
    with pytest.raises(OverdriveError, match=r"m\.gguf: tensor blk\.1\.attn_v\.weight is missing"):
        load_float32(path)
    path.write_bytes(b"GGML" + data[4:])
    with pytest.raises(OverdriveError, match="not a GGUF file"):
        load_float32(path)
    write_gguf(path, reference, "gemma3")
    with pytest.raises(OverdriveError, match=r"unsupported architecture gemma3; supported: llama, qwen2, qwen3"):
        load_float32(path)


def test_a_wrong_shape_is_named(tmp_path: Path):
    reference = save(tmp_path, "Llama", {})
    reference.config.intermediate_size = 50
    write_gguf(tmp_path / "m.gguf", reference, "llama")
    with pytest.raises(OverdriveError, match=r"blk\.0\.ffn_gate\.weight has shape \[48, 32\].*[50, 32]"):
        load_float32(tmp_path / "m.gguf")


def test_end_ids_are_all_the_file_names(tmp_path: Path):
    write_gguf(tmp_path / "m.gguf", save(tmp_path, "Llama", {}), "llama")
    data = (tmp_path / "m.gguf").read_bytes()
    assert GGUFCheckpoint(tmp_path / "m.gguf").config.eos_ids == (2,)
    (tmp_path / "n.gguf").write_bytes(data.replace(b"tokenizer.ggml.eos_token_id", b"tokenizer.ggml.eot_token_id"))
    assert GGUFCheckpoint(tmp_path / "n.gguf").config.eos_ids == (2,)


def test_a_gguf_can_lend_its_config_to_random_weights(tmp_path: Path):
    write_gguf(tmp_path / "m.gguf", save(tmp_path, "Llama", {}), "llama")
    options = ModelOptions(load_format="dummy", precision="float32", seed=5)
    loaded = load(str(tmp_path / "m.gguf"), options, torch.device("cpu"), lambda label, done, total: None)
    assert loaded.source == tmp_path / "m.gguf"
    assert loaded.config.hidden == 32
