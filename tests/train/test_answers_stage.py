"""The first stage: what is refused before any work, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.train import answers
from overdrive.train.answers import make_answers
from overdrive.train.dataset import DatasetInfo, DatasetWriter
from overdrive.train.eagle3 import train_eagle3
from overdrive.train.generate.recipe import Recipe
from overdrive.train.options import AnswerOptions, HeadOptions, TrainOptions, resolve

from .test_command import CONFIG

RECIPE = Recipe(max_len=512, prompt_tokens=256)  # as long as the toy's texts may be


@pytest.fixture
def stage(tmp_path: Path, monkeypatch):
    """stage(): runs it on prompts.jsonl into answers/; returns how often the target was asked."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 259}))
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{n} " * n}) + "\n" for n in range(1, 7)))
    asked: list[Path] = []
    monkeypatch.setattr(answers, "write_answers", lambda model, prompts, folder, **rest: asked.append(folder))

    def run(path: Path = prompts, max_model_len: int = 0, recipe: Recipe = RECIPE) -> int:
        options = ModelOptions(
            load_format="dummy", chat_template=str(tmp_path / "chat.jinja"), max_model_len=max_model_len
        )
        model = str(tmp_path / "config.json")
        make_answers(
            model,
            path,
            tmp_path / "answers",
            options=AnswerOptions(recipe=recipe),
            device="cpu",
            model_options=options,
            quiet=True,
        )
        return len(asked)

    return run


def test_a_finished_folder_is_left_alone(stage, tmp_path):
    assert stage() == 1
    DatasetWriter(tmp_path / "answers", DatasetInfo(target="toy", fingerprint="", vocab=259)).finish()
    assert stage() == 1


def test_prompts_that_cannot_be_answered_are_refused_before_any_work(stage, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(OverdriveError, match=r"empty\.jsonl holds no prompts"):
        stage(empty)
    with pytest.raises(OverdriveError, match=r"prompts\.jsonl line 3: the prompt has 6 tokens, but at most 4"):
        stage(max_model_len=20, recipe=Recipe(max_len=20, prompt_tokens=4, answer_tokens=16))
    with pytest.raises(OverdriveError, match=r"--answers.max-len 1024: .*config\.json reads at most 512 tokens"):
        stage(recipe=Recipe())
    assert stage() == 1


def test_training_without_prompts_and_answers_is_refused(tmp_path):
    with pytest.raises(OverdriveError, match=r"needs --prompts.*or --data"):
        train_eagle3("smollm2", None, (), tmp_path, head_options=HeadOptions(), options=resolve(TrainOptions()))


def test_a_head_that_cannot_be_is_refused_before_the_answers(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr(answers, "make_answers", lambda *given, **named: pytest.fail("the target was asked"))
    with pytest.raises(OverdriveError, match="--draft-vocab 100"):
        train_eagle3(
            str(tmp_path / "config.json"),
            tmp_path / "prompts.jsonl",
            (),
            tmp_path / "out",
            head_options=HeadOptions(draft_vocab=100),
            options=resolve(TrainOptions()),
            model_options=ModelOptions(load_format="dummy"),
        )
