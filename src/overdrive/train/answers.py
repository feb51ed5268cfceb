"""The first stage: a prompts file becomes a folder of the target's answers, unless it is one already.

Interrupted, it goes on: what shards hold is kept, prompts that were answered as often as the recipe asks are left out,
and what is drawn at random is drawn anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overdrive.bars import LoadingBars
from overdrive.config import ModelOptions
from overdrive.draft.eagle3.shipped import fingerprint
from overdrive.model.weights import locate, open_checkpoint
from overdrive.text import open_text
from overdrive.train.dataset import Dataset, DatasetInfo, DatasetWriter, Split, is_finished, shard_paths
from overdrive.train.generate.answers import generate_answers
from overdrive.train.generate.recipe import LEAST_ANSWER, Budget
from overdrive.train.options import AnswerOptions, TrainingDevice
from overdrive.train.prompts import Prompt, encode_prompts, read_prompts


def make_answers(
    model: str,
    prompts: Path,
    folder: Path,
    *,
    options: AnswerOptions,
    device: TrainingDevice,
    model_options: ModelOptions = ModelOptions(),
    quiet: bool = False,
) -> None:
    """Fill `folder` with answers to the prompts of a file. Nothing happens if that was finished before.

    Raises OverdriveError, one line, for whatever is wrong with file, prompts or model, before any work.
    """
    if is_finished(folder):
        return
    rows = read_prompts(prompts)
    with LoadingBars(quiet) as bars:
        source = locate(model, model_options, bars.update)
    config, checkpoint = open_checkpoint(source, model_options)
    tokenizer, template = open_text(source.parent if source.suffix == ".json" else source, model_options)
    context = model_options.max_model_len or config.max_positions
    encode_prompts(rows, prompts, tokenizer, template, context - LEAST_ANSWER)
    mark = fingerprint(checkpoint.tensor("model.norm.weight"))
    recipe = options.recipe
    info = DatasetInfo(target=model, fingerprint=mark, vocab=config.vocab, sampling=recipe.described)
    with DatasetWriter(folder, info) as writer:
        before = Before.read(folder)
        generate_answers(
            model,
            before.remaining(rows, options),
            _Rest(writer, before),
            folder,
            recipe=replace(recipe, seed=recipe.seed + before.shards),
            budget=before.rest(options.budget),
            device=device,
            rows=options.rows,
            exclude=options.exclude,
            model_options=model_options,
            quiet=quiet,
        )
        writer.finish()


@dataclass(frozen=True, slots=True)
class Before:
    """What earlier sittings left. times: conversations by line of the prompts file. heldout: lines measured on."""

    shards: int
    tokens: int
    times: Counter[int]
    heldout: frozenset[int]

    @classmethod
    def read(cls, folder: Path) -> Before:
        shards = len(shard_paths(folder))
        if not shards:
            return cls(0, 0, Counter(), frozenset())
        found = Dataset.open(folder)
        heldout = found.prompt[found.heldout].tolist()
        return cls(shards, int(found.answer.sum()), Counter(found.prompt.tolist()), frozenset(heldout))

    def remaining(self, prompts: Sequence[Prompt], options: AnswerOptions) -> list[Prompt]:
        """Prompts that want more answers; all of them while a budget makes them come round again.

        Those held out stay in any case: which these are depends on all of them being there.
        """
        wanted = 1 + options.recipe.samples
        if options.budget.limited:
            return list(prompts)
        return [p for p in prompts if p.line in self.heldout or self.times[p.line] < wanted]

    def rest(self, budget: Budget) -> Budget:
        """The part of a budget of tokens that is left, at least one."""
        return replace(budget, tokens=max(budget.tokens - self.tokens, 1)) if budget.tokens else budget


@dataclass(frozen=True, slots=True)
class _Rest:
    """A writer that leaves out held-out conversations which are there already."""

    writer: DatasetWriter
    before: Before

    def add(
        self, tokens: Sequence[int], answer_mask: Sequence[bool], split: Split, category: str = "", prompt: int = -1
    ) -> None:
        if split == "train" or prompt not in self.before.heldout:
            self.writer.add(tokens, answer_mask, split, category, prompt)
