"""Every drafter of the engine around the tiny target: the laws run for each of them. A new one is one line of DRAFTERS.

Their networks are the target's own weights, disturbed, so that some drafts are right and others are not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from overdrive.draft import Drafter, Room
from overdrive.draft.composite import CompositeDrafter
from overdrive.draft.eagle3.choice import EagleChoice
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.loading import random_head
from overdrive.draft.ngram import NgramDrafter
from overdrive.draft.none import NoDrafter
from overdrive.draft.small import SmallModelChoice
from overdrive.model.dummy import tiny_transformer
from overdrive.model.forms import torch_form
from overdrive.model.transformer import Transformer

from .tiny_engine import VOCAB, tiny

MakeDrafter = Callable[[Room], Drafter]


@lru_cache(maxsize=1)
def small_model() -> Transformer:
    """About every other token is the target's."""
    model = tiny_transformer(torch.float64, vocab=VOCAB)
    model.embedding.add_(torch.randn(model.embedding.shape, generator=torch.Generator().manual_seed(1)), alpha=0.02)
    return model


def nobody(room: Room) -> Drafter:
    return NoDrafter()


def ngram(room: Room) -> Drafter:
    return NgramDrafter(room.state.history, room.state.lengths, shortest=1)


def small(room: Room) -> Drafter:
    return SmallModelChoice(small_model(), "tiny").open(room)


def composite(room: Room) -> Drafter:
    return CompositeDrafter(NgramDrafter(room.state.history, room.state.lengths, shortest=2), small(room))


def eagle(room: Room) -> Drafter:
    """A head with random weights, whose ring is soon full."""
    config = HeadConfig.for_target(tiny().config, draft_vocab=40, taps=(0, 1, 2))
    head = random_head(config, torch_form("float64", torch.device("cpu")), tiny(), seed=3)
    return EagleChoice(head, Path("tiny"), 24, torch.float64).open(room)


def copies_and_eagle(room: Room) -> Drafter:
    return CompositeDrafter(NgramDrafter(room.state.history, room.state.lengths, shortest=2), eagle(room))


DRAFTERS: dict[str, MakeDrafter] = {
    "none": nobody,
    "ngram": ngram,
    "small": small,
    "ngram+small": composite,
    "eagle3": eagle,
    "ngram+eagle3": copies_and_eagle,
}
