"""The command from answers to an exported head, on a tiny model folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from overdrive.config import ModelOptions
from overdrive.draft.eagle3 import checkpoint
from overdrive.errors import OverdriveError
from overdrive.model.fingerprint import fingerprint
from overdrive.model.weights import locate, open_checkpoint
from overdrive.train.dataset import Dataset
from overdrive.train.eagle3 import train_eagle3, train_head
from overdrive.train.options import HeadOptions, TrainOptions, resolve
from overdrive.train.start import head_to_go_on_from

from .tiny import VOCAB, tiny_teacher, write_answers

DUMMY = ModelOptions(load_format="dummy")
HEAD = HeadOptions(draft_vocab=48)
OPTIONS = resolve(
    TrainOptions(epochs=2, steps=3, batch_tokens=128, max_len=64, log_every=2, evaluate_every=4, checkpoint_seconds=1e9)
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A config.json alone: with random weights it is the tiny model."""
    path = tmp_path / "model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_answers(tmp_path / "data", tiny_teacher(torch.float32), 16)
    return tmp_path / "data"


def run(model: str, data: Path, out: Path, head: HeadOptions = HEAD, options: TrainOptions = OPTIONS):
    return train_head(model, [data], out, head_options=head, options=options, model_options=DUMMY, quiet=True)


def test_a_run_leaves_a_head_that_loads_a_history_and_a_result(model, data, tmp_path):
    out = tmp_path / "out"
    tallies = run(model, data, out)
    read = checkpoint.read(out, tiny_teacher().config)
    assert read.config.draft_vocab == 48 and read.config.taps == (0, 1, 2)
    ids = checkpoint.target_ids(read.tensors["d2t"])
    answers = Dataset.open(data)
    assert torch.equal(ids, ids.sort().values) and len(answers.split("heldout")) == 4
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert any("loss" in line for line in history) and any("acceptance" in line for line in history)
    assert [line["step"] for line in history] == sorted(line["step"] for line in history)
    result = json.loads((out / "result.json").read_text())
    assert set(result["categories"]) == set(tallies) and len(result["all"]["acceptance"]) == 3
    assert result["all"]["tokens_per_round"].keys() == {"1", "2", "3"}


def test_the_same_command_again_continues_and_drops_what_will_be_measured_anew(model, data, tmp_path):
    out = tmp_path / "out"
    run(model, data, out, options=replace(OPTIONS, epochs=1))
    first = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    with (out / "history.jsonl").open("a") as file:
        file.write(json.dumps({"step": 10_000}) + "\n" + '{"step": 1')
    run(model, data, out)
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert lines[: len(first)] == first and len(lines) > len(first)
    assert max(line["step"] for line in lines) < 10_000
    before = (out / "model.safetensors").read_bytes()
    run(model, data, out)  # nothing is left to do but to measure
    assert (out / "model.safetensors").read_bytes() == before


def test_answers_of_another_target_are_refused(model, data, tmp_path):
    other = tmp_path / "other"
    write_answers(other, tiny_teacher(torch.float32, seed=3), 4)
    with pytest.raises(OverdriveError, match="holds answers of tiny with weights"):
        run(model, other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "head, said",
    [
        (HeadOptions(draft_vocab=65), "--draft-vocab 65.* 64"),
        (HeadOptions(draft_vocab=0), "--draft-vocab 0"),
        (HeadOptions(draft_vocab=48, start_layer=2), "--start-layer 2 is not within -1 .. 1"),
        (HeadOptions(draft_vocab=48, mlp=-5), "--mlp -5"),
    ],
)
def test_a_head_that_cannot_be_is_refused(model, data, tmp_path, head, said):
    with pytest.raises(OverdriveError, match=said):
        run(model, data, tmp_path / "out", head)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 9},
        {"steps": 0},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"warmup": 1.0},
        {"minutes": -1.0},
        {"minutes": math.nan},
        {"epochs": math.inf},
        {"max_len": 2},
    ],
)
def test_impossible_options_are_named(wrong):
    [name] = wrong
    with pytest.raises(OverdriveError, match=f"--{name.replace('_', '-')} "):
        resolve(TrainOptions(**wrong))


def test_figures_stand_whole_in_a_file(model, data, tmp_path, capsys):
    """Not cut to the width of a terminal that is not there."""
    options, sources = replace(OPTIONS, steps=7), [data]
    train_head(model, sources, tmp_path / "out", head_options=HEAD, options=options, model_options=DUMMY)
    shown = capsys.readouterr().out
    assert "K=5" in shown and "…" not in shown


@pytest.mark.parametrize("state", [{"weights": {}}, [1], "no archive"])
def test_a_checkpoint_that_is_none_is_named_in_one_line(model, data, tmp_path, state):
    path = tmp_path / "out" / "training.pt"
    path.parent.mkdir()
    if isinstance(state, str):
        path.write_text(state)
    else:
        torch.save(state, path)
    with pytest.raises(OverdriveError, match=r"^[^\n]*training\.pt [^\n]*; remove it to begin anew$"):
        run(model, data, path.parent)


def test_training_goes_on_from_another_head(model, data, tmp_path):
    """Its loss begins where that one's ended, and its draft ids stay."""

    def losses(out: str) -> list[float]:
        lines = (tmp_path / out / "history.jsonl").read_text().splitlines()
        return [line["loss"] for line in map(json.loads, lines) if "loss" in line]

    run(model, data, tmp_path / "first", options=replace(OPTIONS, epochs=25, learning_rate=1e-2))
    began, *_, ended = losses("first")
    going_on = replace(OPTIONS, epochs=1, learning_rate=1e-12)
    run(model, data, tmp_path / "second", HeadOptions(start_head=str(tmp_path / "first")), going_on)
    assert ended < 0.85 * began
    assert losses("second")[0] == pytest.approx(ended, abs=0.2 * (began - ended))
    first, second = (checkpoint.read(tmp_path / name, tiny_teacher().config) for name in ("first", "second"))
    assert second.config == first.config
    assert torch.equal(second.tensors["d2t"], first.tensors["d2t"])
    for name, tensor in first.tensors.items():
        torch.testing.assert_close(second.tensors[name], tensor, atol=1e-3, rtol=0.01)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (HeadOptions(start_head="shipped"), "no head comes with Overdrive for this model"),
        (HeadOptions(start_head="nowhere"), "nowhere"),
        (HeadOptions(start_head="x", draft_vocab=48, mlp=8), "leave out --draft-vocab and --mlp"),
    ],
)
def test_a_head_that_cannot_be_gone_on_from_is_refused_before_any_work(model, data, tmp_path, options, said):
    with pytest.raises(OverdriveError, match=said):
        run(model, data, tmp_path / "out", options)
    with pytest.raises(OverdriveError, match=said):
        train_eagle3(
            model, tmp_path / "prompts.jsonl", (), tmp_path / "out",
            head_options=options, options=OPTIONS, model_options=DUMMY,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.smollm2
def test_the_head_that_ships_can_be_gone_on_from():
    options = ModelOptions()
    config, weights = open_checkpoint(locate("smollm2", options, lambda *_: None), options)
    found = head_to_go_on_from(
        HeadOptions(start_head="shipped"), config, fingerprint(weights.tensor("model.norm.weight"))
    )
    assert found.config.draft_vocab == 8192
