"""From a prompts file to a finished dataset folder; a folder that is there in part is continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from overdrive.bars import LoadingBars
from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.model.fingerprint import fingerprint
from overdrive.model.weights import locate, open_checkpoint
from overdrive.progress import Progress
from overdrive.train.dataset import DatasetInfo, DatasetWriter, is_finished
from overdrive.train.generate.answers import generate_answers
from overdrive.train.generate.recipe import Budget, Recipe
from overdrive.train.generate.tally import Tally
from overdrive.train.prompts import read_prompts


def write_answers(
    model: str,
    prompts: Path,
    out: Path,
    *,
    recipe: Recipe = Recipe(),
    budget: Budget = Budget(),
    device: Literal["cpu", "cuda"] = "cpu",
    rows: int = 0,
    exclude: Sequence[Path] = (),
    model_options: ModelOptions = ModelOptions(),
    quiet: bool = False,
) -> Tally:
    """`generate_answers` to the prompts of a file, as a dataset in `out`. Does nothing where that is finished.

    Raises OverdriveError, one line, for whatever is wrong with the model or the files, and when no answer was made.
    """
    if is_finished(out):
        return Tally.read(out)
    waiting = read_prompts(prompts)
    with LoadingBars(quiet) as bars:
        info = _info(model, model_options, recipe, bars.update)
    with DatasetWriter(out, info) as writer:
        tally = generate_answers(
            model,
            waiting,
            writer,
            out,
            recipe=recipe,
            budget=budget,
            device=device,
            rows=rows,
            exclude=exclude,
            model_options=model_options,
            quiet=quiet,
            flush=writer.flush,
        )
        if not tally.conversations:
            raise OverdriveError(f"none of the {len(waiting)} prompts in {prompts} was answered: {dict(tally.dropped)}")
        writer.finish()
    return tally


def _info(model: str, options: ModelOptions, recipe: Recipe, progress: Progress) -> DatasetInfo:
    config, checkpoint = open_checkpoint(locate(model, options, progress), options)
    mark = fingerprint(checkpoint.tensor("model.norm.weight"))
    return DatasetInfo(target=model, fingerprint=mark, vocab=config.vocab, sampling=recipe.described)
