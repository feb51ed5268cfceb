"""What a precision means: packed weights compute what plain torch computes on the same numbers."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from overdrive.config import ModelOptions, Precision
from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.team import Team
from overdrive.errors import OverdriveError
from overdrive.model.forms import JoinedLinear, cpu_form, pack_auto, packed_factory, precision_meant, torch_form
from overdrive.model.gguf import GGUFBlocks
from overdrive.model.transformer import Transformer
from overdrive.model.weights import load
from tests.model.gguf_writing import write_gguf
from tests.model.paged import paged_logits
from tests.model.test_families import save, sequences

WIDE = {"hidden_size": 64, "intermediate_size": 96}
CPU = torch.device("cpu")
BYTES = 2e-3  # error where codes are multiplied as bytes, by activations of 16 bits


def quiet(label: str, done: int, total: int) -> None:
    pass


def built(path: Path, precision: Precision, team: Team | None) -> Transformer:
    return load(str(path), ModelOptions(precision=precision), CPU, quiet, team).transformer


def test_packed_blocks_of_a_file_mean_what_its_dequantised_weights_mean(tmp_path: Path):
    for kind in (Kind.Q8_0, Kind.Q4_1):
        write_gguf(tmp_path / "m.gguf", save(tmp_path, "Llama", WIDE | {"tie_word_embeddings": True}), "llama", kind)
        packed, plain = built(tmp_path / "m.gguf", "auto", Team(2)), built(tmp_path / "m.gguf", "float32", None)
        for a, b in zip(paged_logits(packed, sequences()), paged_logits(plain, sequences()), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=BYTES)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float32", 1e-4), ("float64", 1e-4), ("int8", 0.2), ("int4", 2.0)]
)
def test_float_checkpoints_in_every_precision(precision: Precision, tolerance: float, tmp_path: Path):
    save(tmp_path, "Qwen2", WIDE)
    [exact] = paged_logits(built(tmp_path, "float64", None), [sequences()[0]])
    [logits] = paged_logits(built(tmp_path, precision, Team(2)), [sequences()[0]])
    assert (logits - exact).abs().max() < tolerance
    assert logits.dtype == (torch.float64 if precision == "float64" else torch.float32)


def test_int8_is_what_auto_means_for_float_checkpoints_on_a_cpu(tmp_path: Path):
    save(tmp_path, "Llama", {})
    [auto], [int8] = (paged_logits(built(tmp_path, p, Team(2)), [sequences()[0]]) for p in ("auto", "int8"))
    assert torch.equal(auto, int8)


def test_formats_that_cannot_be_stacked_are_joined_with_their_biases():
    rng = np.random.default_rng(0)
    weights, dense = [], []
    for rows, kind in ((32, Kind.Q8_0), (16, Kind.Q8_0), (16, Kind.Q4_1)):
        blocks = gguf.quantize(rng.standard_normal((rows, 64)).astype(np.float32), kind)
        weights.append(GGUFBlocks(blocks, kind, 64))
        dense.append(weights[-1].dense())
    bias, x = torch.randn(64), torch.randn(5, 64)
    linear = packed_factory(LinearKernels(Team(2)), pack_auto)(weights, bias)
    assert isinstance(linear, JoinedLinear) and len(linear.parts) == 2
    torch.testing.assert_close(linear(x), torch.nn.functional.linear(x, torch.cat(dense), bias), rtol=0, atol=BYTES)
    alike = packed_factory(LinearKernels(Team(2)), pack_auto)(weights[:2], None)
    assert isinstance(alike, PackedLinear)


def test_precisions_that_cannot_be_had_say_so(tmp_path: Path):
    with pytest.raises(OverdriveError, match="precision 'int8' needs the CPU kernels"):
        torch_form("int8", CPU)
    save(tmp_path, "Llama", {"hidden_size": 40})
    with pytest.raises(OverdriveError, match="'int4' needs layer widths divisible by 32; this model has 40"):
        built(tmp_path, "int4", Team(1))
    assert cpu_form("float64", Team(1)).dtype == torch.float64


@pytest.mark.parametrize(
    ("precision", "device", "blocks", "meant"),
    [
        ("auto", "cpu", True, "gguf blocks"),
        ("auto", "cpu", False, "int8"),
        ("auto", "cuda", True, "bfloat16"),
        ("int4", "cpu", True, "int4"),
        ("fp8", "cuda", False, "fp8"),
    ],
)
def test_auto_is_said_as_what_it_means(precision: Precision, device: str, blocks: bool, meant: str) -> None:
    assert precision_meant(precision, torch.device(device), blocks) == meant
