"""Drafters, chosen by name here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from overdrive.config import DraftOptions, EngineOptions
from overdrive.device.state import SlotState
from overdrive.draft.base import Drafter, Drafts
from overdrive.draft.batches import known_tokens, one_each
from overdrive.draft.composite import CompositeChoice
from overdrive.draft.copies import PaddedNgramDrafter
from overdrive.draft.eagle3.choice import EagleChoice, least_window
from overdrive.draft.eagle3.loading import dummy_head, load_head
from overdrive.draft.eagle3.ring import TapRing
from overdrive.draft.eagle3.shipped import find_head
from overdrive.draft.marks import PageMarks
from overdrive.draft.ngram import NgramDrafter
from overdrive.draft.none import NoDrafter, PaddedNoDrafter
from overdrive.draft.padded import PaddedDrafter, PaddedDrafts, PaddedRoom
from overdrive.draft.room import Choice, Room
from overdrive.draft.small import load_small
from overdrive.errors import OverdriveError
from overdrive.model import hub
from overdrive.model.assemble import Form
from overdrive.model.fingerprint import fingerprint
from overdrive.model.forms import form_for
from overdrive.model.weights import Loaded
from overdrive.progress import Progress

if TYPE_CHECKING:  # a device runs drafters: it imports this room first
    from overdrive.device.base import Device

__all__ = [
    "Choice",
    "Drafter",
    "Drafts",
    "PaddedDrafter",
    "PaddedDrafts",
    "PaddedRoom",
    "Room",
    "choose",
    "compile_drafters",
]


DUMMY = "dummy"
"""As a head's name: random weights, for measuring."""


@dataclass(frozen=True, slots=True)
class NoDrafts:
    """Nobody drafts."""

    name = "none"
    model = ""
    window = 0

    def page_bytes(self, page_size: int) -> int:
        return 0

    def slot_bytes(self) -> int:
        return 0

    def open(self, room: Room) -> Drafter:
        return NoDrafter()

    def open_padded(self, room: PaddedRoom) -> PaddedNoDrafter:
        return PaddedNoDrafter()


@dataclass(frozen=True, slots=True)
class Ngrams:
    """Copies of the text's own runs of at least `shortest` tokens. Its index is small beside a slot's pages."""

    shortest: int

    name = "ngram"
    model = ""
    window = 0

    def page_bytes(self, page_size: int) -> int:
        return 0

    def slot_bytes(self) -> int:
        return 0

    def open(self, room: Room) -> NgramDrafter:
        return NgramDrafter(room.state.history, room.state.lengths, self.shortest)

    def open_padded(self, room: PaddedRoom) -> PaddedNgramDrafter:
        return PaddedNgramDrafter(room.state, self.shortest)


def choose(options: EngineOptions, loaded: Loaded, device: Device, progress: Progress) -> Choice:
    """The drafter that `options.draft` means for this model, its weights loaded.

    auto: n-gram copies and the EAGLE-3 head that is given or ships for this model; copies alone where there is none.
    Raises OverdriveError, one line, for a network that does not fit the model, and where one is wanted and there is
    none.
    """
    draft = options.draft
    if draft.draft == "none":
        return NoDrafts()
    copied, _, wanted = draft.draft.rpartition("+")
    if wanted == "ngram":
        return Ngrams(draft.ngram_min)
    match wanted:
        case "small":
            network: Choice | None = _small(options, loaded, device, progress)
        case "eagle3" | "auto":
            network = _eagle(options, loaded, device, progress)
        case _:
            raise ValueError(f"no drafter is made here for {draft.draft!r}, though the options have its name")
    if network is None:
        return Ngrams(draft.ngram_min)
    return CompositeChoice(draft.ngram_min, network) if copied or wanted == "auto" else network


def compile_drafters() -> None:
    """Compile what drafters run natively, onto numba's disk cache: another process can do it ahead of the first use."""
    nothing = torch.zeros(0, dtype=torch.int64)
    state = SlotState(1, 1, 1)
    NgramDrafter(state.history, state.lengths)
    nobody, gaps = nothing.numpy(), np.zeros((1, 2), np.int64)
    known_tokens(state, nobody, nobody, nobody, 0, gaps[:0])
    first = torch.zeros(1, dtype=torch.int64)
    one_each(state, first, first, first, 0, gaps)
    PageMarks(1, 1)
    TapRing(state, 1, 1, 1, torch.float32)


def _small(options: EngineOptions, loaded: Loaded, device: Device, progress: Progress) -> Choice:
    return load_small(options.draft.draft_model, loaded, options.model, _form(options, device), progress)


def _eagle(options: EngineOptions, loaded: Loaded, device: Device, progress: Progress) -> Choice | None:
    """The head that is given or ships; None where neither is and "auto" leaves it open."""
    target = loaded.transformer
    draft = options.draft
    # Padded steps are read as they are; elsewhere a chunk is read from what the window keeps of it.
    window = max(draft.draft_window, least_window(options.scheduler.chunk)) if device.team else draft.draft_window
    if draft.draft_model == DUMMY:
        head = dummy_head(target, _form(options, device), options.model.seed, progress)
        return EagleChoice(head, Path(DUMMY), window, target.dtype)
    folder = _head_folder(draft, progress) or find_head(loaded.config, fingerprint(target.final_norm))
    if folder is None:
        if draft.draft == "auto":
            return None
        raise OverdriveError(f"--draft {draft.draft} needs --draft-model: no head ships for this model")
    return EagleChoice(load_head(folder, target, _form(options, device), progress), folder, window, target.dtype)


def _form(options: EngineOptions, device: Device) -> Form:
    """Of a draft network's weights: the target's, but whole where ranks divide the target."""
    return form_for(options.model.precision, device.torch_device, device.team)


def _head_folder(draft: DraftOptions, progress: Progress) -> Path | None:
    if not draft.draft_model:
        return None
    path = Path(draft.draft_model).expanduser()
    if not path.exists() and hub.is_hub_id(draft.draft_model):
        return hub.fetch(draft.draft_model, "", True, progress)
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise OverdriveError(
            f"--draft-model {draft.draft_model} {what}: an EAGLE-3 head is a folder with config.json and safetensors, "
            "or a hub id like owner/name"
        )
    return path
