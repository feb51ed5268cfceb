"""Folders of safetensors, and what the MODEL argument may be: sharding changes nothing, damage is one clear line."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2ForCausalLM

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.model import hub
from overdrive.model.weights import load, locate
from tests.model.paged import paged_logits
from tests.model.test_families import load_float32, reference_logits, save, sequences

SINGLE = "model.safetensors"


def quiet(label: str, done: int, total: int) -> None:
    pass


def load_on_cpu(model: str | Path, **options):
    return load(str(model), ModelOptions(**options), torch.device("cpu"), quiet)


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


def test_shards_mean_the_same_model(tmp_path: Path):
    reference = save(tmp_path, "Llama", {}, shard="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2 and not (tmp_path / SINGLE).exists()
    [logits] = paged_logits(load_float32(tmp_path), [sequences()[0]])
    torch.testing.assert_close(logits, reference_logits(reference, sequences()[0]), rtol=0, atol=1e-4)


def test_half_precision_checkpoints_are_widened(tmp_path: Path):
    save(tmp_path, "Qwen2", {}).bfloat16().save_pretrained(tmp_path)
    assert load_file(tmp_path / SINGLE)["model.norm.weight"].dtype == torch.bfloat16
    reference = Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    [logits] = paged_logits(load_float32(tmp_path), [sequences()[0]])
    torch.testing.assert_close(logits, reference_logits(reference, sequences()[0]), rtol=0, atol=1e-4)


def test_damaged_weights_are_one_line_that_names_the_tensor(tmp_path: Path):
    def fails(pattern: str) -> None:
        with pytest.raises(OverdriveError, match=pattern) as error:
            load_float32(tmp_path)
        assert "\n" not in str(error.value)

    save(tmp_path, "Llama", {})
    whole = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[: len(whole) // 2])
    fails(r"model\.safetensors cannot be read as safetensors")
    for tensor, change, pattern in [
        ("model.norm.weight", lambda t, n: t.pop(n), r"tensor model\.norm\.weight is missing"),
        ("model.norm.weight", lambda t, n: t.update({n: t[n][:5].clone()}), r"model\.norm\.weight has shape \[5\]"),
        ("model.norm.weight", lambda t, n: t.update({n: t[n].int()}), r"model\.norm\.weight is of type torch\.int32"),
        (
            "model.layers.0.self_attn.q_proj.bias",
            lambda t, n: t.update({n: torch.ones(32)}),
            r"q_proj\.bias is not part",
        ),
    ]:
        (tmp_path / SINGLE).write_bytes(whole)
        rewrite(tmp_path, lambda tensors, change=change, tensor=tensor: change(tensors, tensor))
        fails(pattern)
    (tmp_path / SINGLE).rename(tmp_path / "pytorch_model.bin")
    fails(r"only pickled weights \(pytorch_model\.bin\)")
    (tmp_path / "pytorch_model.bin").unlink()
    fails("has no weights")


def test_a_missing_shard_is_named(tmp_path: Path):
    save(tmp_path, "Llama", {}, shard="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    shards[1].unlink()
    with pytest.raises(OverdriveError, match=shards[1].name):
        load_float32(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], shards[0].name)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(OverdriveError, match=r"tensor \S+ is missing, although \S+ places it there"):
        load_float32(tmp_path)


def test_random_weights_need_a_config_alone(tmp_path: Path):
    save(tmp_path, "Qwen3", {"head_dim": 8})
    (tmp_path / SINGLE).unlink()
    by_folder = load_on_cpu(tmp_path, load_format="dummy", precision="float32", seed=1)
    by_file = load_on_cpu(tmp_path / "config.json", load_format="dummy", precision="float32", seed=1)
    assert by_folder.source == by_file.source == tmp_path
    [one], [two] = (paged_logits(m.transformer, [[5, 6, 7]]) for m in (by_folder, by_file))
    assert torch.equal(one, two)


def test_progress_counts_up_to_its_total(tmp_path: Path):
    save(tmp_path, "Llama", {})
    seen: list[tuple[str, int, int]] = []
    load(str(tmp_path), ModelOptions(), torch.device("cpu"), lambda *event: seen.append(event))
    assert [done for _, done, _ in seen] == [1, 2, 3, 4]
    assert {(label, total) for label, _, total in seen} == {("weights", 4)}


@pytest.mark.parametrize(
    ("model", "options", "pattern"),
    [
        ("", {}, "no model was named: give smollm2"),
        (" ", {}, "no model was named"),
        ("no-such-model", {}, "no model 'no-such-model': expected smollm2, a folder, a .gguf file or a hub id"),
        ("{folder}/weights.txt", {}, "neither a folder, a .gguf file nor a config.json"),
        ("{folder}/config.json", {}, "a config without weights; give --load-format dummy"),
        ("{folder}", {"load_format": "gguf"}, "cannot be loaded with load_format 'gguf'"),
        ("{folder}", {"max_model_len": 257}, r"max_model_len 257 is not within 1 \.\. 256"),
        ("{folder}/none.gguf", {}, "no model"),
    ],
)
def test_a_model_argument_that_means_nothing_is_explained(model, options, pattern, tmp_path: Path):
    save(tmp_path, "Llama", {})
    (tmp_path / "weights.txt").write_text("")
    with pytest.raises(OverdriveError, match=pattern):
        load_on_cpu(model.format(folder=tmp_path), **options)


def test_hub_ids_are_fetched_at_their_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = {}

    def fake(repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.update(repo=repo_id, revision=revision, patterns=allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    assert locate("some/model", ModelOptions(revision="v2"), quiet) == tmp_path
    assert (asked["repo"], asked["revision"]) == ("some/model", "v2")
    assert "*.safetensors" in asked["patterns"] and not any("bin" in p for p in asked["patterns"])
    locate("some/model", ModelOptions(load_format="dummy"), quiet)
    assert "*.safetensors" not in asked["patterns"] and asked["revision"] is None


def test_a_download_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch):
    """However long it takes: an engine that starts and says nothing is taken for stuck."""
    enough, signs = threading.Event(), []

    def fake(*args: object, **options: object) -> str:
        assert enough.wait(10)
        return "folder"

    def progress(label: str, done: int, total: int) -> None:
        signs.append((label, threading.current_thread()))
        if len(signs) == 3:
            enough.set()

    monkeypatch.setattr(hub, "_SIGN_SECONDS", 0.01)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    assert hub.fetch("some/model", "", True, progress) == Path("folder")
    assert len(signs) >= 3 and set(signs) == {("download some/model", threading.current_thread())}


def test_an_unreachable_hub_is_one_clear_line(monkeypatch: pytest.MonkeyPatch):
    def fake(*args: object, **options: object) -> str:
        raise ConnectionError("no route\nto anywhere")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    with pytest.raises(OverdriveError, match=r"cannot fetch some/model .* not in the cache: no route$"):
        hub.fetch("some/model", "", True, quiet)

    def refuses(*args: object, **options: object) -> str:
        raise RuntimeError("Got: ConnectError") from ConnectionRefusedError(errno.ECONNREFUSED, "")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuses)
    with pytest.raises(OverdriveError, match=r"not in the cache: connection refused$"):
        hub.fetch("some/model", "", True, quiet)
