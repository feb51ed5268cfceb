"""Every option of `overdrive train eagle3`; the command line is generated from these. Nothing heavy is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from overdrive.errors import OverdriveError
from overdrive.train.generate.recipe import Budget, Recipe

TrainingDevice = Literal["cpu", "cuda"]
MAX_STEPS = 8  # that can be unrolled


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions:
    """The head's shape and where its weights start. Widths and rope are the target's."""

    draft_vocab: int = 8192
    """Token ids the head can draft: the most frequent ones of the answers."""
    mlp: int = 0
    """Width of the MLP; 0 takes the target's."""
    norm_before_residual: bool = False
    """The residual of attention is the normed feature instead of the raw one."""
    norm_output: bool = False
    """Feed the normed output to the next draft instead of the raw one."""
    fc_norm: bool = False
    """Norm each of the three tapped features before they are fused."""
    start_layer: int = -1
    """Target layer whose attention and MLP the head starts from; -1 starts at random."""
    start_head: str = ""
    """A head to go on from: a folder, or "shipped" for the one that comes with Overdrive. It brings its own shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How long, how fast, on what."""

    device: Literal["auto"] | TrainingDevice = "auto"
    """Where the arithmetic runs. auto: on the GPU that torch finds, else the CPU."""
    epochs: float = 0.0
    """Passes over the answers, after which the rate's cosine ends; 0 for 10 passes, or as many as --minutes allows."""
    minutes: float = 0.0
    """End training after this time, the cosine included; 0 for no limit."""
    batch_tokens: int = 0
    """Tokens of a batch, padding included; 0 takes 16384 on a GPU, 2048 on a CPU."""
    max_len: int = 1024
    """Tokens of a conversation that are trained on; what is behind them is left out."""
    most_tokens: int = 0
    """Answer tokens to train on, drawn by conversation; 0 for all there are."""
    steps: int = 7
    """Drafts in a row that training unrolls."""
    learning_rate: float = 1e-3
    """Peak of the learning rate."""
    warmup: float = 0.02
    """Share of the run in which the rate rises to its peak."""
    weight_decay: float = 0.0
    """AdamW's, decoupled."""
    clip: float = 0.5
    """Largest norm of a gradient."""
    hard: float = 0.0
    """Weight of the target's likeliest token beside its distribution (weight 1) as what is to be learnt."""
    train_seed: int = 0
    """Seed of first weights and of the order of batches."""
    compile: bool = False
    """Compile the loss with torch.compile."""
    log_every: int = 20
    """Steps between lines of progress."""
    evaluate_every: int = 250
    """Steps between measurements of held-out acceptance."""
    evaluate_on: int = 128
    """Most held-out conversations of those measurements; the last one takes all."""
    checkpoint_seconds: float = 120.0
    """Time between checkpoints that an interrupted run continues from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How the target's answers come to be, where there are none yet.

    rows: answers at once, 0 for the device's usual number. exclude: files or folders of JSON lines whose texts must not
    be trained on.
    """

    recipe: Recipe = field(default_factory=Recipe)
    budget: Budget = field(default_factory=Budget)
    rows: int = 0
    exclude: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise OverdriveError(f"--rows {self.rows} must be at least 0")


def resolve(options: TrainOptions) -> TrainOptions:
    """The same with the device's defaults filled in. Raises OverdriveError for values that cannot be."""
    for field_ in fields(options):
        value = getattr(options, field_.name)
        endless = isinstance(value, float) and not math.isfinite(value)
        _refuse(options, field_.name, endless, "is no number to work with")
    for name, least in (("epochs", 0.0), ("minutes", 0.0), ("weight_decay", 0.0), ("hard", 0.0), ("max_len", 4)):
        _refuse(options, name, getattr(options, name) < least, f"must be at least {least:g}")
    for name in ("learning_rate", "clip", "log_every", "evaluate_every", "evaluate_on", "checkpoint_seconds"):
        _refuse(options, name, getattr(options, name) <= 0, "must be above 0")
    _refuse(options, "steps", not 1 <= options.steps <= MAX_STEPS, f"must be within 1 .. {MAX_STEPS}")
    _refuse(options, "warmup", not 0 < options.warmup < 1, "must be between 0 and 1")
    for name in ("batch_tokens", "most_tokens"):
        _refuse(options, name, getattr(options, name) < 0, "must be at least 0")
    device = _find_device() if options.device == "auto" else options.device
    default = 16384 if device == "cuda" else 2048
    return replace(options, device=device, batch_tokens=options.batch_tokens or default)


def _find_device() -> TrainingDevice:
    import torch  # takes seconds, which a wrong option need not wait for

    return "cuda" if torch.cuda.is_available() else "cpu"


def _refuse(options: TrainOptions, name: str, wrong: bool, rule: str) -> None:
    if wrong:
        raise OverdriveError(f"--{name.replace('_', '-')} {getattr(options, name)} {rule}")
