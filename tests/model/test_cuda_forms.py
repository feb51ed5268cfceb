"""What a precision means on CUDA: in plain torch where there is no GPU, and there by the device's own products."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from overdrive.config import ModelOptions, Precision
from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cpu.team import Team
from overdrive.device.cuda.linear import ScoringLinear
from overdrive.device.cuda.memory import check_device, check_room
from overdrive.errors import OverdriveError
from overdrive.model.assemble import assemble, expected_shapes, parameter_counts
from overdrive.model.config import ModelConfig
from overdrive.model.dummy import RandomCheckpoint, tiny_config
from overdrive.model.forms import cpu_form, cuda_bytes, cuda_form, form_for, torch_form
from overdrive.model.shapes import CONFIGS, shape_names
from overdrive.model.transformer import Transformer
from overdrive.model.weights import load, load_as, locate
from overdrive.text import open_text
from tests.model.gguf_writing import write_gguf
from tests.model.paged import make_batch, paged_logits
from tests.model.test_families import save, sequences

CPU = torch.device("cpu")
WIDE = {"hidden_size": 64, "intermediate_size": 96}
DUMMY = ModelOptions(load_format="dummy")


def quiet(label: str, done: int, total: int) -> None:
    pass


def logits_of(path: Path, precision: Precision) -> torch.Tensor:
    options = ModelOptions(precision=precision)
    loaded = load_as(str(path), options, cuda_form(precision, CPU), quiet)
    return paged_logits(loaded.transformer, [sequences()[0]])[0]


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("float64", 1e-9), ("float32", 1e-4), ("float16", 0.02), ("bfloat16", 0.15), ("fp8", 0.6), ("int8", 0.2)],
)
def test_every_precision_is_near_the_exact_model_and_scores_in_float32(
    precision: Precision, tolerance: float, tmp_path: Path
) -> None:
    save(tmp_path, "Qwen2", WIDE)
    logits, exact = logits_of(tmp_path, precision), logits_of(tmp_path, "float64")
    assert logits.dtype == (torch.float64 if precision == "float64" else torch.float32)
    assert (logits - exact).abs().max() < tolerance


def test_int4_keeps_most_of_a_model(tmp_path: Path) -> None:
    save(tmp_path, "Llama", WIDE)
    logits, exact = logits_of(tmp_path, "int4"), logits_of(tmp_path, "float64")
    assert (logits - exact).norm() < 0.5 * exact.norm()


def test_one_long_page_holds_what_many_short_ones_do(tmp_path: Path) -> None:
    save(tmp_path, "Llama", WIDE)
    model = load(str(tmp_path), ModelOptions(precision="float64"), CPU, quiet).transformer
    torch.testing.assert_close(device_logits(model, sequences()[0]), logits_of(tmp_path, "float64"))


def test_auto_is_bfloat16_for_floats_and_for_blocks(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", save(tmp_path, "Llama", WIDE), "llama", Kind.Q8_0)
    for path in (tmp_path, tmp_path / "m.gguf"):
        assert torch.equal(logits_of(path, "auto"), logits_of(path, "bfloat16"))
    assert form_for("auto", torch.device("cpu"), Team(1)).dtype == torch.float32


def test_a_tied_head_is_the_embedding_itself() -> None:
    config = tiny_config(tied=True)
    model = assemble(config, RandomCheckpoint(config, 0), cuda_form("fp8", CPU), 64, quiet)
    assert isinstance(model._head, ScoringLinear)
    assert model._head.weight is model.embedding


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "fp8"])
def test_a_cpu_refuses_what_is_for_cuda(precision: Precision) -> None:
    for make in (lambda: cpu_form(precision, Team(1)), lambda: torch_form(precision, CPU)):
        with pytest.raises(OverdriveError, match=f"^precision '{precision}' is for CUDA; a CPU takes [^\n]*$"):
            make()


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "float64"])
def test_bytes_are_counted_before_there_are_any(precision: Precision) -> None:
    config, form = tiny_config(), cuda_form(precision, CPU)
    checkpoint = RandomCheckpoint(config, 0)
    kept = sum(checkpoint.tensor(name).to(form.dtype).nbytes for name in expected_shapes(config))
    assert cuda_bytes(config, precision) == kept


def test_smaller_precisions_need_less() -> None:
    config = ModelConfig.from_folder(CONFIGS / "llama-3.1-8b")
    sizes = [cuda_bytes(config, p) for p in ("float32", "bfloat16", "fp8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] == 2 * 8_030_261_248


PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3-8b": 8_190_735_360,
    "qwen3-0.6b": 596_049_920,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", shape_names())
def test_shapes_have_the_parameters_their_models_have(name: str) -> None:
    assert sum(parameter_counts(ModelConfig.from_folder(CONFIGS / name))) == PARAMETERS[name]


def test_a_shape_is_a_model_with_random_weights_and_ids_that_show_as_numbers() -> None:
    source = locate("llama-3.1-8b", DUMMY, quiet)
    config = ModelConfig.from_folder(source)
    assert config.rope.kind == "llama3" and config.max_positions == 131072
    tokenizer, _ = open_text(source, DUMMY)
    assert len(tokenizer.token_bytes()) == config.vocab == 128256
    assert tokenizer.decode([72, 105, 300, 128255]) == "Hi<300><128255>"
    with pytest.raises(OverdriveError, match="a shape without weights; give --load-format dummy"):
        locate("llama-3.1-8b", ModelOptions(), quiet)


def test_a_folder_comes_before_a_shape_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen3-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("qwen3-8b", DUMMY, quiet) == Path("qwen3-8b")


def test_a_model_that_does_not_fit_says_what_it_needs_and_what_there_is() -> None:
    check_room("model m", 100, 100, torch.device("cuda:0"))
    with pytest.raises(
        OverdriveError, match=r"^model m needs 16\.0 GiB for its weights and cuda:0 has 8\.0 GiB free: "
    ):
        check_room("model m", 16 << 30, 8 << 30, torch.device("cuda:0"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_to_do() -> None:
    with pytest.raises(OverdriveError, match=r"^[^\n]*CUDA[^\n]*--device cpu$"):
        check_device(torch.device("cuda:0"))


@pytest.mark.cuda
def test_a_gpu_that_is_not_there_is_named() -> None:
    check_device(torch.device("cuda:0"))
    with pytest.raises(OverdriveError, match=r"^there is no cuda:99: torch finds \d+ CUDA device"):
        check_device(torch.device("cuda:99"))


@torch.inference_mode()
def device_logits(model: Transformer, ids: list[int]) -> torch.Tensor:
    """Logits [len, V] of one sequence, on the model's device."""
    kv = PagedKV.allocate(model.config, 2, 64, model.dtype, model.device)
    batch = make_batch([(ids, 0)], [[1]], 64)
    there = Batch(**{field.name: getattr(batch, field.name).to(model.device) for field in fields(Batch)})
    return model.logits(model.forward(there, ReferenceAttention(kv, there, model.config)).final)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "int8", "int4", "fp8"])
def test_a_gpu_computes_what_plain_torch_does(precision: Precision, tmp_path: Path) -> None:
    save(tmp_path, "Llama", WIDE)
    device = torch.device("cuda:0")
    loaded = load(str(tmp_path), ModelOptions(precision=precision), device, quiet)
    assert loaded.transformer.device.type == "cuda"
    found, expected = device_logits(loaded.transformer, sequences()[0]), logits_of(tmp_path, precision)
    # Codes of a few bits make of a rounding in bfloat16, now and then, the next code.
    allowed = {"fp8": 0.15, "int4": 0.1}.get(precision, 0.03)
    assert (found.cpu() - expected).norm() < allowed * expected.norm()


@pytest.mark.cuda
def test_random_weights_are_drawn_on_the_gpu_the_same_for_a_seed() -> None:
    device = torch.device("cuda:0")
    first, again, other = (
        load("smollm2-135m", ModelOptions(load_format="dummy", seed=seed), device, quiet).transformer
        for seed in (0, 0, 1)
    )
    assert first.embedding.is_cuda and first.dtype == torch.bfloat16
    assert torch.equal(first.embedding, again.embedding) and not torch.equal(first.embedding, other.embedding)
    hidden = torch.randn(3, 576, device=device).bfloat16()
    assert first.logits(hidden).isfinite().all()
