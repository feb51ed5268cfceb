"""From prompts to a dataset of the target's answers: `generate_answers`. Picks the generator by device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

import torch

from overdrive.bars import LoadingBars
from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.model.weights import locate
from overdrive.progress import Progress
from overdrive.text import open_text
from overdrive.train.generate.batched import BatchedGenerator
from overdrive.train.generate.beginnings import Beginnings
from overdrive.train.generate.conversations import Conversations
from overdrive.train.generate.display import AnswerLines
from overdrive.train.generate.exclusion import Exclusions
from overdrive.train.generate.jobs import Generator
from overdrive.train.generate.recipe import Budget, Recipe
from overdrive.train.generate.tally import Conversation, Tally
from overdrive.train.generate.target import open_target
from overdrive.train.generate.turns import Turns
from overdrive.train.prompts import Prompt

CUDA_ROWS, CPU_ROWS = 2048, 32
SAVED_EVERY = 300.0  # seconds: what a machine that goes down may cost


class Writer(Protocol):
    """Where conversations go; a `DatasetWriter`."""

    def add(
        self,
        tokens: Sequence[int],
        answer_mask: Sequence[bool],
        split: Literal["train", "heldout"],
        category: str = "",
        prompt: int = -1,
    ) -> None: ...


def generate_answers(
    model: str,
    prompts: Sequence[Prompt],
    writer: Writer,
    folder: Path,
    *,
    recipe: Recipe = Recipe(),
    budget: Budget = Budget(),
    device: Literal["cpu", "cuda"] = "cpu",
    rows: int = 0,
    exclude: Sequence[Path] = (),
    model_options: ModelOptions = ModelOptions(),
    quiet: bool = False,
    flush: Callable[[], None] = lambda: None,
) -> Tally:
    """The target's answers to `prompts` and to prompts of its own, as the recipe has it, given to `writer`.

    folder: takes answers.json (what was made) and prompts_used.jsonl; what they say was made before is not asked again,
    and counts for the budget's tokens. rows: answers at once, 0 for the device's usual number. exclude: JSON-lines
    files, or folders of them, none of whose texts may be in a user's turn. flush: called now and then to put on the
    disk what the writer has, just before answers.json says that it is there.
    Raises OverdriveError, one line, for whatever is wrong with the model, the prompts or the files, before any work.
    """
    exclusions = Exclusions.read(exclude)
    with contextlib.ExitStack() as stack:
        with LoadingBars(quiet) as bars:
            turns = _open_turns(model, model_options, bars.update)
            opened = _generator(model, model_options, turns, recipe, device, rows, bars.update)
            generator = stack.enter_context(opened)
        return answer(generator, turns, prompts, writer, folder, recipe, budget, exclusions, quiet, flush)


def answer(
    generator: Generator,
    turns: Turns,
    prompts: Sequence[Prompt],
    writer: Writer,
    folder: Path,
    recipe: Recipe,
    budget: Budget,
    exclusions: Exclusions,
    quiet: bool = False,
    flush: Callable[[], None] = lambda: None,
) -> Tally:
    """`generate_answers` with everything at hand."""
    tally = Tally.read(folder)
    recipe = replace(recipe, seed=recipe.seed + tally.conversations)  # what continues must not draw the same again
    beginnings = Beginnings(prompts, turns, recipe, exclusions, tally, budget.limited)
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        flush()
        tally.write(folder, prompts, beginnings.heldout)
        saved = time.monotonic()

    with AnswerLines(quiet) as lines:

        def finish(conversation: Conversation) -> None:
            split: Literal["train", "heldout"] = "heldout" if conversation.heldout else "train"
            writer.add(conversation.ids, conversation.answered, split, conversation.category, conversation.line)
            lines.update(tally.conversations, tally.answer_tokens)
            if time.monotonic() - saved > SAVED_EVERY:
                save()

        feed = Conversations(beginnings, turns, recipe, budget, generator.stops, tally, finish)
        try:
            generator.run(feed)
        finally:  # what an interrupted run has made is not asked again
            save()
        lines.end(tally.conversations, tally.answer_tokens)
    return tally


def _open_turns(model: str, options: ModelOptions, progress: Progress) -> Turns:
    source = locate(model, options, progress)
    return Turns.of(*open_text(source if source.suffix != ".json" else source.parent, options))


@contextlib.contextmanager
def _generator(
    model: str,
    options: ModelOptions,
    turns: Turns,
    recipe: Recipe,
    device: Literal["cpu", "cuda"],
    rows: int,
    progress: Progress,
) -> Iterator[Generator]:
    if device == "cpu":
        from overdrive.train.generate.engine import EngineGenerator  # the server's parts are not wanted elsewhere

        engine = EngineGenerator(
            model, options, turns.stops, rows=rows or CPU_ROWS, max_len=recipe.max_len, progress=progress
        )
        with contextlib.closing(engine):
            yield engine
        return
    if not torch.cuda.is_available():
        raise OverdriveError("--device cuda: this torch sees no CUDA device")
    target = open_target(model, options, torch.device("cuda"), recipe.max_len, progress)
    progress("graphs", 0, 1)
    yield BatchedGenerator(
        target.transformer,
        {*target.stops, *turns.stops},
        slots=rows or CUDA_ROWS,
        max_len=recipe.max_len,
        seed=recipe.seed,
    )
