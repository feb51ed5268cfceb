"""`overdrive train eagle3`: answers, training, measurement, export. Each stage is left out when its result is there.

OUT/data/           the target's answers, unless other folders are given
OUT/training.pt     the run so far; an interrupted run continues from it
OUT/history.jsonl   loss and held-out acceptance against tokens seen
OUT/config.json, model.safetensors   the head, in SpecForge's layout
OUT/result.json     how it did at the end, per category
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from overdrive.bars import LoadingBars
from overdrive.config import ModelOptions
from overdrive.draft.eagle3 import checkpoint
from overdrive.errors import OverdriveError
from overdrive.model.fingerprint import fingerprint
from overdrive.model.weights import locate, open_checkpoint
from overdrive.train.batches import MULTIPLE, make_lesson, trainable
from overdrive.train.dataset import SPLITS, Dataset, is_finished
from overdrive.train.evaluate import Tally, evaluate, overall
from overdrive.train.head import Head, head_config
from overdrive.train.options import AnswerOptions, HeadOptions, TrainingDevice, TrainOptions
from overdrive.train.report import Display, History, Pace, in_words, summary, table
from overdrive.train.start import continued_head, head_to_go_on_from, new_head
from overdrive.train.target import Teacher
from overdrive.train.trainer import Position, Trainer, learning_rate
from overdrive.train.vocabulary import choose_draft_ids, count_answers, coverage

TABLE_WIDTH = 160
SAMPLE = 32  # conversations that show how large the target's features are


def train_eagle3(
    model: str,
    prompts: Path | None,
    data: Sequence[Path],
    out: Path,
    *,
    head_options: HeadOptions,
    options: TrainOptions,
    answer_options: AnswerOptions = AnswerOptions(),
    model_options: ModelOptions = ModelOptions(),
) -> None:
    """Every stage that is not done yet.

    data: folders of answers to train on; without any, OUT/data is filled from `prompts`. Raises OverdriveError.
    """
    if not data:
        data = (out / "data",)
        if prompts is None and not is_finished(data[0]):
            raise OverdriveError("training needs --prompts, a file for the target to answer, or --data, its answers")
        _device(options)
        _check_head(model, model_options, head_options)
        if prompts is not None:
            from overdrive.train.answers import make_answers  # chat templates and tokenizers are not wanted elsewhere

            device: TrainingDevice = "cuda" if options.device == "cuda" else "cpu"
            make_answers(model, prompts, data[0], options=answer_options, device=device, model_options=model_options)
    train_head(model, data, out, head_options=head_options, options=options, model_options=model_options)


def train_head(
    model: str,
    data: Sequence[Path],
    out: Path,
    *,
    head_options: HeadOptions,
    options: TrainOptions,
    model_options: ModelOptions = ModelOptions(),
    quiet: bool = False,
) -> dict[str, Tally]:
    """Train on the answers in `data`, measure and export to `out`; returns held-out tallies by category.

    options: resolved. Raises OverdriveError for whatever does not fit, before anything runs.
    """
    device = _device(options)
    dataset = Dataset.open(*data)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with LoadingBars(quiet) as bars:
        teacher = Teacher.load(model, model_options, device, dtype, bars.update)
    _check(dataset, teacher, data)
    head = _new_head(dataset, teacher, head_options, options)
    _make(out)
    with Display(quiet) as display:
        run = _Run(teacher, head, dataset, options, out, display)
        run.describe()
        run.train(Trainer(teacher, head, dataset, options))
        tallies = run.finish()
    if tallies:
        console = Console(quiet=quiet)
        if not console.is_terminal:  # a file or a pipe is as wide as the table
            console.width = TABLE_WIDTH
        console.print(table(tallies))
    return tallies


@dataclass(frozen=True, slots=True)
class _Run:
    """A head on its way from first weights to a folder."""

    teacher: Teacher
    head: Head
    dataset: Dataset
    options: TrainOptions
    out: Path
    display: Display

    def describe(self) -> None:
        """What is trained on what."""
        dataset, head = self.dataset, self.head
        parameters = sum(weight.numel() for weight in head.weights.values())
        self.display.say(
            f"{len(dataset.split('train'))} conversations to train on, {len(dataset.split('heldout'))} held out; "
            f"{count_answers(dataset, 'train').sum():,} answer tokens"
        )
        self.display.say(
            f"Head of {parameters / 1e6:.1f}M parameters, {len(head.draft_ids)} draft ids that cover "
            f"{100 * coverage(dataset, head.draft_ids, 'train'):.1f} % of the training answers and "
            f"{100 * coverage(dataset, head.draft_ids, 'heldout'):.1f} % of those held out; {self.options.device}"
        )

    def train(self, trainer: Trainer) -> None:
        """Run the loop, from a checkpoint if there is one; what is measured goes to the display and the history."""
        options, state = self.options, self.out / "training.pt"
        if state.exists():
            trainer.load(state)
            self.display.say(f"Continuing at step {trainer.position.step}, {100 * trainer.share_done():.1f} % done")
        position, history = trainer.position, History(self.out / "history.jsonl", trainer.position.step)
        losses, pace, saved = [], Pace(position), time.monotonic()
        for loss in trainer.steps():
            losses.append(loss)
            # The first one too: on a CPU the next line can be many minutes away.
            if position.step % options.log_every == 0 or position.step == 1:
                mean, losses = float(torch.stack(losses).mean()), []  # the only wait for the device between steps
                done = trainer.share_done()
                self.display.step(position, done, mean, pace.tokens_per_second())
                history.add(position, loss=round(mean, 5), learning_rate=learning_rate(done, options))
            if position.step % options.evaluate_every == 0:
                self._measure_some(position, history)
                pace = Pace(position)
            if time.monotonic() - saved > options.checkpoint_seconds:
                trainer.save(state)
                saved = time.monotonic()
        trainer.save(state)

    def _measure_some(self, position: Position, history: History) -> None:
        """Held-out acceptance between steps, evenly from all that is held out: files are often sorted by category."""
        held = self.dataset.split("heldout")
        count = min(self.options.evaluate_on, len(held))
        if count:
            tally = overall(self._measure(held[np.linspace(0, len(held) - 1, count, dtype=np.int64)]))
            self.display.say(f"step {position.step} · {in_words(tally)}")
            history.add(position, **summary(tally))

    def _measure(self, conversations: NDArray[np.int64]) -> dict[str, Tally]:
        options = self.options
        sizes = {"steps": options.steps, "max_len": options.max_len, "batch_tokens": options.batch_tokens}
        return evaluate(self.head, self.teacher, self.dataset, conversations, **sizes)

    def finish(self) -> dict[str, Tally]:
        """Export, then measure on everything held out."""
        dataset, head = self.dataset, self.head
        checkpoint.write(self.out, head.config, head.tensors())
        self.display.say(f"Head written to {self.out}")
        held = dataset.split("heldout")
        tallies = self._measure(held) if len(held) else {}
        result = {
            "target": dataset.info.target,
            "target_fingerprint": self.teacher.fingerprint,
            "sampling": dataset.info.sampling,
            "answer_tokens": int(count_answers(dataset, "train").sum()),
            "coverage": {split: round(coverage(dataset, head.draft_ids, split), 4) for split in SPLITS},
            "options": asdict(self.options),
            "all": summary(overall(tallies)) if tallies else {},
            "categories": {name: summary(tally) for name, tally in tallies.items()},
        }
        (self.out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        return tallies


def _new_head(dataset: Dataset, teacher: Teacher, head_options: HeadOptions, options: TrainOptions) -> Head:
    """A head with its first weights; a checkpoint replaces them."""
    some = trainable(dataset, options.max_len)[:SAMPLE]
    lesson = make_lesson(dataset, some, options.max_len, teacher.device)
    positions = options.max_len + MULTIPLE + options.steps
    if head_options.start_head:
        found = head_to_go_on_from(head_options, teacher.config, teacher.fingerprint)
        return continued_head(found, teacher, lesson, positions=positions)
    config = head_config(teacher.config, head_options)
    draft_ids = choose_draft_ids(dataset, config.draft_vocab).to(teacher.device)
    return new_head(config, teacher, draft_ids, lesson, head_options, seed=options.train_seed, positions=positions)


def _device(options: TrainOptions) -> torch.device:
    if options.device == "cuda":
        if not torch.cuda.is_available():
            raise OverdriveError("--device cuda: this torch sees no CUDA device")
        # The target's logits are computed in float32; TF32 keeps the bits that its bfloat16 states have.
        torch.set_float32_matmul_precision("high")
    return torch.device(options.device)


def _check_head(model: str, model_options: ModelOptions, head_options: HeadOptions) -> None:
    """A head that cannot be is refused before hours of answers, not after them."""
    with LoadingBars(quiet=True) as bars:
        config, weights = open_checkpoint(locate(model, model_options, bars.update), model_options)
    if head_options.start_head:
        head_to_go_on_from(head_options, config, fingerprint(weights.tensor("model.norm.weight")))
    else:
        head_config(config, head_options)


def _check(dataset: Dataset, teacher: Teacher, data: Sequence[Path]) -> None:
    """The answers must be this target's own."""
    info, where = dataset.info, ", ".join(map(str, data))
    if info.vocab != teacher.config.vocab:
        raise OverdriveError(f"{where} has answers over {info.vocab} ids; the target has {teacher.config.vocab}")
    if info.fingerprint and info.fingerprint != teacher.fingerprint:
        raise OverdriveError(
            f"{where} holds answers of {info.target} with weights {info.fingerprint[:12]}; "
            f"the target's are {teacher.fingerprint[:12]}"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OverdriveError(f"cannot make the folder {folder}: {error.strerror}") from None
