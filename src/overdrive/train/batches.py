"""Batches of whole conversations: which go together, padded and brought to the device.

Conversations of like length share a batch whose padded size stays within a budget of tokens. The plan of an epoch
depends on (seed, epoch) alone, which is what makes an interrupted run continue exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overdrive.errors import OverdriveError
from overdrive.train.dataset import Dataset

MULTIPLE = 32  # widths are rounded up to it
FIRST = 2  # the first index of a conversation that a head predicts: x[t + 2] at t = 0


@dataclass(frozen=True, slots=True)
class Lesson:
    """Conversations on the device, padded behind.

    ids: [B, S] int64. places: [N] int64, where in the flattened ids answer tokens stand that a head predicts.
    tokens: real tokens in it. conversations: their indices in the dataset, row by row.
    """

    ids: Tensor
    places: Tensor
    tokens: int
    conversations: NDArray[np.int64]

    @property
    def answers(self) -> int:
        """Answer tokens in it."""
        return len(self.places)


def usable(dataset: Dataset, conversations: NDArray[np.int64], max_len: int) -> NDArray[np.int64]:
    """Those that have an answer token to predict within their first `max_len` tokens."""
    found = [_answer(dataset, c, max_len)[FIRST:].any() for c in conversations]
    return conversations[np.array(found, dtype=bool)]


def trainable(dataset: Dataset, max_len: int) -> NDArray[np.int64]:
    """Usable conversations of the train split. Raises OverdriveError when there is none."""
    found = usable(dataset, dataset.split("train"), max_len)
    if not len(found):
        held = len(dataset.split("heldout"))
        raise OverdriveError(
            f"no conversation has an answer to learn from within its first {max_len} tokens"
            + (f"; {held} of {len(dataset)} are held out to measure on" if held else "")
        )
    return found


def sample(dataset: Dataset, conversations: NDArray[np.int64], max_len: int, tokens: int) -> NDArray[np.int64]:
    """Some of them, at random but always the same, with just about `tokens` answer tokens; all of them for 0.

    A smaller sample is part of a larger one, so that what more data brings can be measured.
    """
    order = np.random.default_rng(0).permutation(conversations)
    sizes = np.array([_answer(dataset, c, max_len)[FIRST:].sum() for c in order])
    enough = int(np.searchsorted(np.cumsum(sizes), tokens)) + 1 if tokens else len(order)
    return np.sort(order[:enough])


def plan_epoch(lengths: NDArray[np.int64], budget: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Indices into `lengths`, batch by batch, each once: like lengths together, in random order.

    A batch's padded size is at most `budget` tokens, or one conversation.
    """
    widths = -(-lengths // MULTIPLE) * MULTIPLE
    order = rng.permutation(len(lengths))
    order = order[np.argsort(widths[order], kind="stable")]
    batches, start = [], 0
    while start < len(order):
        end = start + 1
        while end < len(order) and widths[order[end]] * (end + 1 - start) <= budget:
            end += 1
        batches.append(order[start:end])
        start = end
    return [batches[index] for index in rng.permutation(len(batches))]


def make_lesson(dataset: Dataset, conversations: NDArray[np.int64], max_len: int, device: torch.device) -> Lesson:
    """Read, cut to `max_len`, pad with id 0 and copy without waiting for the device."""
    rows = [dataset.conversation(c)[0][:max_len] for c in conversations]
    width = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
    ids = np.zeros((len(rows), width), dtype=np.int64)
    answer = np.zeros((len(rows), width), dtype=bool)
    for index, (row, conversation) in enumerate(zip(rows, conversations, strict=True)):
        ids[index, : len(row)] = row
        answer[index, FIRST : len(row)] = _answer(dataset, conversation, max_len)[FIRST:]
    places = np.flatnonzero(answer)
    return Lesson(_to(ids, device), _to(places, device), sum(map(len, rows)), conversations)


def in_order(lengths: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """As `plan_epoch`, without chance: for measurements."""
    return plan_epoch(lengths, budget, np.random.default_rng(0))


def clipped_lengths(dataset: Dataset, conversations: Sequence[int] | NDArray[np.int64], max_len: int) -> Any:
    """Tokens of these conversations that are used, [n] int64."""
    return np.minimum(dataset.lengths[conversations], max_len)


def _answer(dataset: Dataset, conversation: int, max_len: int) -> NDArray[np.bool_]:
    return dataset.conversation(conversation)[1][:max_len]


def _to(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    # Only from pinned memory does a copy run beside the device's work.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
