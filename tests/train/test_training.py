"""Laws of a training run on a tiny model: it learns, it continues exactly, it exports what it trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from overdrive.errors import OverdriveError
from overdrive.train.dataset import Dataset
from overdrive.train.evaluate import evaluate, overall
from overdrive.train.options import TrainOptions, resolve
from overdrive.train.target import Teacher
from overdrive.train.trainer import Trainer, learning_rate

from .tiny import chosen, tiny_head, tiny_teacher, write_answers

OPTIONS = resolve(TrainOptions(epochs=3, batch_tokens=128, max_len=64, learning_rate=3e-3, warmup=0.1))


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return tiny_teacher()


@pytest.fixture(scope="module")
def dataset(teacher: Teacher, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_answers(tmp_path_factory.mktemp("answers"), teacher, 24)


def trainer(teacher: Teacher, dataset: Dataset, options: TrainOptions = OPTIONS) -> Trainer:
    return Trainer(teacher, tiny_head(teacher, chosen(dataset, 48)), dataset, options)


def test_loss_falls_and_acceptance_rises_on_answers_that_are_learnt_by_heart(teacher, dataset):
    options = replace(OPTIONS, epochs=25, steps=4, hard=4.0, learning_rate=1e-2)
    head = tiny_head(teacher, chosen(dataset, 64))
    sizes = {"steps": options.steps, "max_len": options.max_len, "batch_tokens": 512}
    learnt = dataset.split("train")
    before = overall(evaluate(head, teacher, dataset, learnt, **sizes))
    losses = [float(loss) for loss in Trainer(teacher, head, dataset, options).steps()]
    after = overall(evaluate(head, teacher, dataset, learnt, **sizes))
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]
    assert before.acceptance[0] < 0.2 and min(after.acceptance) > 0.6
    assert after.per_round[3] > 1.5 > before.per_round[3]


@pytest.mark.parametrize("stop", [1, 7])
def test_an_interrupted_run_ends_with_the_weights_of_one_that_was_not(teacher, dataset, tmp_path, stop):
    whole = trainer(teacher, dataset)
    losses = [float(loss) for loss in whole.steps()]
    first, second = trainer(teacher, dataset), trainer(teacher, dataset)
    for _ in first.steps():
        if first.position.step == stop:
            break
    first.save(tmp_path / "training.pt")
    second.load(tmp_path / "training.pt")
    assert [float(loss) for loss in second.steps()] == losses[stop:]
    assert second.position.step == whole.position.step == len(losses) > 2 * stop
    for one, other in zip(whole.head.weights.values(), second.head.weights.values(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(teacher, dataset, tmp_path):
    path: Path = tmp_path / "training.pt"
    trainer(teacher, dataset).save(path)
    with pytest.raises(OverdriveError, match="run whose train_seed was 0, not 1"):
        trainer(teacher, dataset, replace(OPTIONS, train_seed=1)).load(path)
    with pytest.raises(OverdriveError, match="run whose target was"):
        other = tiny_teacher(seed=5)
        trainer(other, dataset).load(path)
    path.write_bytes(b"no zip file")
    with pytest.raises(OverdriveError, match=r"training\.pt is damaged"):
        trainer(teacher, dataset).load(path)


def test_answers_with_nothing_to_learn_are_refused(teacher, dataset):
    with pytest.raises(OverdriveError, match="no conversation has an answer to learn from within its first 2 tokens"):
        trainer(teacher, dataset, replace(OPTIONS, max_len=2))


def test_every_training_token_is_seen_once_an_epoch(teacher, dataset):
    run = trainer(teacher, dataset)
    list(run.steps())
    train = ~dataset.heldout.repeat(dataset.lengths)
    assert run.position.tokens == 3 * train.sum()
    assert run.position.answers == 3 * (train & dataset.answer).sum()


def test_a_limit_of_time_ends_the_run_with_the_cosine_finished(teacher, dataset, monkeypatch):
    clock = iter(range(1000))
    # The trainer's own clock: that of the process is also the clock of servers that other tests have running.
    monkeypatch.setattr("overdrive.train.trainer.time", SimpleNamespace(monotonic=lambda: next(clock)))
    run = trainer(teacher, dataset, replace(OPTIONS, epochs=0, minutes=0.5))
    steps = len(list(run.steps()))
    assert run.share_done() == 1 and 10 <= steps <= 30


def test_the_rate_rises_to_its_peak_and_falls_to_its_rest():
    rates = [learning_rate(done / 100, OPTIONS) for done in range(101)]
    peak = rates.index(max(rates))
    assert peak == 10 and rates[peak] == OPTIONS.learning_rate
    assert rates == sorted(rates[:peak]) + sorted(rates[peak:], reverse=True)
    assert rates[0] < 0.02 * max(rates) and rates[-1] < 0.03 * max(rates)


def losses(dataset: Dataset, dtype: torch.dtype, device: str = "cpu", compiled: bool = False) -> list[float]:
    model = tiny_teacher(dtype, device=torch.device(device))
    run = Trainer(model, tiny_head(model, chosen(dataset, 48)), dataset, replace(OPTIONS, compile=compiled))
    found = [float(loss) for loss in run.steps()]
    assert run.head.weights["fc.weight"].dtype == torch.promote_types(dtype, torch.float32)
    return found


def test_half_precision_learns_as_double_precision_does(dataset):
    """The arithmetic a GPU runs: bfloat16 for the target and the head's steps, float32 for weights and losses."""
    assert losses(dataset, torch.bfloat16) == pytest.approx(losses(dataset, torch.float64), rel=0.03)


@pytest.mark.slow
def test_a_compiled_loss_learns_as_the_plain_one(dataset):
    plain, compiled = (losses(dataset, torch.float32, compiled=compiled) for compiled in (False, True))
    assert compiled == pytest.approx(plain, rel=1e-3)


@pytest.mark.cuda
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_as_the_cpu_does(dataset, compiled):
    assert losses(dataset, torch.bfloat16, "cuda", compiled) == pytest.approx(losses(dataset, torch.float64), rel=0.03)
