"""Drafters, chosen by name here and nowhere else."""

from __future__ import annotations

from torch import Tensor

from overdrive.config import DraftOptions
from overdrive.draft.base import Drafter, Drafts
from overdrive.draft.ngram import NgramDrafter
from overdrive.draft.none import NoDrafter
from overdrive.errors import OverdriveError

__all__ = ["Drafter", "Drafts", "NgramDrafter", "NoDrafter", "make_drafter"]


def make_drafter(options: DraftOptions, history: Tensor, lengths: Tensor) -> Drafter:
    """The drafter that `options.draft` names.

    history: [slots, max_len] int32, the tokens of each slot as the device knows them. lengths: [slots] int64, how many
    of them stand. Both are read on the stream at every proposal and never copied.
    Raises OverdriveError for drafters that are not built yet.
    """
    if options.draft == "none":
        return NoDrafter()
    if options.draft not in ("auto", "ngram"):
        raise OverdriveError(f"--draft {options.draft} is not built yet")
    return NgramDrafter(history, lengths, shortest=options.ngram_min)
