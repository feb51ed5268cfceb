"""The CUDA runner around the tiny model, on a CPU: padded shapes and the torch form of every kernel, in float64."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from overdrive.config import DraftOptions, EngineOptions
from overdrive.device.base import Parts
from overdrive.device.cuda.device import CudaDevice
from overdrive.device.stream import Stream
from overdrive.draft import Choice, Ngrams, NoDrafts
from overdrive.draft.composite import CompositeChoice
from overdrive.draft.eagle3.choice import EagleChoice
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.loading import random_head
from overdrive.draft.small import SmallModelChoice
from overdrive.model.forms import torch_form
from overdrive.policy.controller import Controller
from overdrive.types import MAX_DRAFTS

from .bench import Bench
from .tiny_drafters import small_model
from .tiny_engine import Bounds, around, tiny

CPU = torch.device("cpu")


@lru_cache(maxsize=1)
def eagle() -> EagleChoice:
    """A head with random weights, whose ring is soon full."""
    config = HeadConfig.for_target(tiny().config, draft_vocab=40, taps=(0, 1, 2))
    head = random_head(config, torch_form("float64", CPU), tiny(), seed=3)
    return EagleChoice(head, Path("tiny"), 24, torch.float64)


def choices() -> dict[str, Choice]:
    """Every drafter that has a padded form."""
    return {
        "none": NoDrafts(),
        "ngram": Ngrams(1),
        "eagle3": eagle(),
        "ngram+eagle3": CompositeChoice(2, eagle()),
        "small": SmallModelChoice(small_model(), "tiny"),
    }


def padded_bench(stream: Stream, controller: Controller, choice: Choice, acceptance: str = "", **bounds) -> Bench:
    """acceptance: as `DraftOptions.simulate_acceptance`. bounds: as for `tiny_bench`."""
    given = Bounds(**bounds)
    options = EngineOptions(draft=DraftOptions(simulate_acceptance=acceptance))
    parts = Parts(tiny(), choice, given.limits(), given.n_pages, MAX_DRAFTS, (), options)
    runner = CudaDevice(CPU).assemble(parts, stream)
    return around(given, controller, runner.sources, runner)
