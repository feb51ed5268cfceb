"""The first stage: refusals before any work, and an interrupted sitting that is continued, not repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.train import answers
from overdrive.train.answers import make_answers
from overdrive.train.dataset import Dataset, is_finished
from overdrive.train.generate.recipe import Budget, Recipe
from overdrive.train.options import AnswerOptions

from .test_command import CONFIG

OPTIONS = AnswerOptions(recipe=Recipe(samples=1))


class Generation:
    """Stands in for the generator: a greedy and a sampled answer to each prompt, the fourth held out; may fail."""

    def __init__(self, fails_after: int = 10**6) -> None:
        self.fails_after, self.lines, self.seed, self.budget = fails_after, [], 0, Budget()

    def __call__(self, model, prompts, writer, folder, *, recipe, budget, **rest) -> None:
        self.seed, self.budget = recipe.seed, budget
        for prompt in prompts:
            if len(self.lines) == self.fails_after:
                raise KeyboardInterrupt
            self.lines.append(prompt.line)
            split = "heldout" if prompt.line == 4 else "train"
            for _ in range(1 if split == "heldout" else 2):
                writer.add([5, 6, 7], [False, True, True], split, "", prompt.line)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch):
    """stage(generation, **changes): runs it on prompts.jsonl into answers/."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 259}))
    (folder / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"prompt {n}"}) + "\n" for n in range(6)))
    options = ModelOptions(load_format="dummy", chat_template=str(folder / "chat.jinja"))

    def run(generation: Generation, given: AnswerOptions = OPTIONS, path: Path = prompts, **model) -> Path:
        monkeypatch.setattr(answers, "generate_answers", generation)
        make_answers(
            str(folder / "config.json"),
            path,
            tmp_path / "answers",
            options=given,
            device="cpu",
            model_options=replace(options, **model),
            quiet=True,
        )
        return tmp_path / "answers"

    return run


def test_a_finished_folder_is_left_alone(stage):
    first, second = Generation(), Generation()
    folder = stage(first)
    stage(second)
    assert first.lines == [1, 2, 3, 4, 5, 6] and second.lines == [] and is_finished(folder)
    assert len(Dataset.open(folder)) == 11


def test_an_interrupted_sitting_goes_on_where_it_was(stage, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stage(Generation(fails_after=4))
    assert not is_finished(tmp_path / "answers")
    rest = Generation()
    read = Dataset.open(stage(rest))
    assert rest.lines == [4, 5, 6] and rest.seed == 1  # those held out are asked again, but kept once
    assert sorted(read.prompt.tolist()) == [1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6]
    assert read.prompt[read.heldout].tolist() == [4]


def test_a_budget_counts_what_is_there(stage):
    budgeted = replace(OPTIONS, budget=Budget(tokens=20))
    with pytest.raises(KeyboardInterrupt):
        stage(Generation(fails_after=3), budgeted)
    rest = Generation()
    stage(rest, budgeted)
    assert rest.lines == [1, 2, 3, 4, 5, 6] and rest.budget.tokens == 20 - 12


def test_wrong_prompts_and_models_are_refused_before_any_work(stage, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(OverdriveError, match=r"empty\.jsonl holds no prompts"):
        stage(Generation(), path=empty)
    with pytest.raises(OverdriveError, match=r"prompts\.jsonl line 1: the prompt has 8 tokens, but at most 4"):
        stage(Generation(), max_model_len=20)
    assert not (tmp_path / "answers").exists()
