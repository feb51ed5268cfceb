"""The draft vocabulary: which of the target's ids a head can write, and how checkpoints say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overdrive.errors import OverdriveError
from overdrive.train.dataset import Dataset, Split


def choose_draft_ids(dataset: Dataset, size: int) -> Tensor:
    """The `size` most frequent answer tokens of the train split, ascending, int64; of equals the lower id.

    Raises OverdriveError when the target has fewer ids than that.
    """
    if not 0 < size <= dataset.info.vocab:
        raise OverdriveError(f"a draft vocabulary of {size} does not fit {dataset.info.vocab} ids of the target")
    frequent = np.argsort(-count_answers(dataset, "train"), kind="stable")[:size]
    return torch.from_numpy(np.sort(frequent).astype(np.int64))


def coverage(dataset: Dataset, draft_ids: Tensor, split: Split) -> float:
    """Share of that split's answer tokens that are in the draft vocabulary; 0 when it has none."""
    counts = count_answers(dataset, split)
    return float(counts[draft_ids.cpu().numpy()].sum() / max(counts.sum(), 1))


def count_answers(dataset: Dataset, split: Split) -> NDArray[Any]:
    """How often each id stands in an answer of that split, [V]."""
    of_split = np.repeat(dataset.heldout == (split == "heldout"), dataset.lengths)
    return np.bincount(dataset.tokens[of_split & dataset.answer], minlength=dataset.info.vocab)


def offsets(draft_ids: Tensor) -> Tensor:
    """`d2t` of checkpoints, [draft] int64: target id = d + d2t[d]."""
    return draft_ids.cpu() - torch.arange(len(draft_ids))
