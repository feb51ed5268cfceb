"""The first stage: the prompts file is checked as a whole, then the target answers it."""

from __future__ import annotations

from pathlib import Path

from overdrive.bars import LoadingBars
from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.model.weights import locate, open_checkpoint
from overdrive.text import open_text
from overdrive.train.dataset import is_finished
from overdrive.train.generate.folder import write_answers
from overdrive.train.generate.recipe import LEAST_ANSWER, Recipe
from overdrive.train.options import AnswerOptions, TrainingDevice
from overdrive.train.prompts import encode_prompts, read_prompts


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
    """Fill `folder` with answers to the prompts of a file, or continue. Does nothing where that was finished before.

    Raises OverdriveError, one line, for whatever is wrong with file, prompts or model, before any work.
    """
    if is_finished(folder):
        return
    _check(model, prompts, options.recipe, model_options, quiet)
    write_answers(
        model,
        prompts,
        folder,
        recipe=options.recipe,
        budget=options.budget,
        device=device,
        rows=options.rows,
        exclude=options.exclude,
        model_options=model_options,
        quiet=quiet,
    )


def _check(model: str, prompts: Path, recipe: Recipe, options: ModelOptions, quiet: bool) -> None:
    """Refuse a file with a line that the target cannot answer: a recipe would leave it out without a word."""
    rows = read_prompts(prompts)
    with LoadingBars(quiet) as bars:
        source = locate(model, options, bars.update)
    config, _ = open_checkpoint(source, options)
    tokenizer, template = open_text(source.parent if source.suffix == ".json" else source, options)
    context = options.max_model_len or config.max_positions
    if recipe.max_len > context:
        raise OverdriveError(
            f"--answers.max-len {recipe.max_len}: {model} reads at most {context} tokens; give --answers.max-len "
            f"{context} or less, with shorter --answers.prompt-tokens ({recipe.prompt_tokens})"
        )
    encode_prompts(rows, prompts, tokenizer, template, context - LEAST_ANSWER)
