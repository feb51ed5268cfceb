"""Held-out acceptance: per position, per round of a chain, per category. Greedy: a draft is right if it is the text.

A chain that starts at index t (x[t+1] is the last known token) drafts x[t+2], x[t+3], ...; while all of its drafts are
right its state is that of the unrolled steps at t. So a round accepts as many drafts as lead at t, adds the target's
own token, and the next round starts that much further: the decoder's walk, without decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.train.batches import clipped_lengths, in_order, make_lesson, usable
from overdrive.train.dataset import Dataset
from overdrive.train.head import Head
from overdrive.train.objective import leading_right
from overdrive.train.target import Teacher

CHAINS = 5  # tokens per round are counted for chains of 1 .. CHAINS drafts


@dataclass(slots=True)
class Tally:
    """Counts over conversations. offered, right: [steps], chains that came as far as a position, and were right there.

    tokens: generated behind the first of each answer. rounds: [chains], passes of the target that takes.
    """

    offered: NDArray[np.int64]
    right: NDArray[np.int64]
    rounds: NDArray[np.int64]
    tokens: int = 0

    @classmethod
    def empty(cls, steps: int) -> Tally:
        offered, right = np.zeros((2, steps), dtype=np.int64)
        return cls(offered, right, np.zeros(min(steps, CHAINS), dtype=np.int64))

    def add(self, lead: NDArray[np.int64], answer: NDArray[np.bool_]) -> None:
        """One conversation: right drafts in a row from each index, and where the answers are, both [n]."""
        for first, last in answer_spans(answer):
            starts = lead[first - 1 : last - 1]  # chains whose first draft is still in the answer
            room = np.arange(len(starts), 0, -1)  # drafts that are
            for i in range(len(self.offered)):
                came = (starts >= i) & (room > i)
                self.offered[i] += came.sum()
                self.right[i] += (came & (starts > i)).sum()
            self.tokens += len(starts)
            for k in range(len(self.rounds)):
                self.rounds[k] += count_rounds(starts, k + 1)

    def merge(self, other: Tally) -> None:
        self.offered += other.offered
        self.right += other.right
        self.rounds += other.rounds
        self.tokens += other.tokens

    @property
    def acceptance(self) -> list[float]:
        """Per position: how often a draft is right if all before it were."""
        return (self.right / np.maximum(self.offered, 1)).tolist()

    @property
    def per_round(self) -> list[float]:
        """Tokens per round for chains of 1, 2, ... drafts."""
        return (self.tokens / np.maximum(self.rounds, 1)).tolist()


def answer_spans(answer: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(first, last) of every answer behind index 0, inclusive. The first token comes from the prompt's own pass."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], answer[1:].astype(np.int8), [0])))) + 1
    return [(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def count_rounds(lead: NDArray[np.int64], drafts: int) -> int:
    """Rounds that write an answer. lead: [n] right drafts in a row, by how many of its n tokens stand already."""
    rounds, at = 0, 0
    accepted = np.minimum(lead, drafts).tolist()
    while at < len(accepted):
        at += accepted[at] + 1
        rounds += 1
    return rounds


def evaluate(
    head: Head,
    teacher: Teacher,
    dataset: Dataset,
    conversations: NDArray[np.int64],
    *,
    steps: int,
    max_len: int,
    batch_tokens: int,
) -> dict[str, Tally]:
    """A tally per category, "" left as it is. conversations: held-out ones, whose answers are greedy."""
    tallies: dict[str, Tally] = {}
    for lesson, lead in _leads(head, teacher, dataset, conversations, steps, max_len, batch_tokens):
        for row, conversation in zip(lead, lesson, strict=True):
            answer = dataset.conversation(conversation)[1][:max_len]
            name = dataset.categories[dataset.category[conversation]]
            tallies.setdefault(name, Tally.empty(steps)).add(row[: len(answer)], answer)
    return dict(sorted(tallies.items()))


def _leads(
    head: Head,
    teacher: Teacher,
    dataset: Dataset,
    conversations: NDArray[np.int64],
    steps: int,
    max_len: int,
    batch_tokens: int,
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Conversations of a batch, and their leads [B, S], batch by batch."""
    chosen = usable(dataset, conversations, max_len)
    for batch in in_order(clipped_lengths(dataset, chosen, max_len), batch_tokens):
        lesson = make_lesson(dataset, chosen[batch], max_len, teacher.device)
        yield lesson.conversations, leading_right(head, teacher, lesson, steps).cpu().numpy()


def overall(tallies: Mapping[str, Tally]) -> Tally:
    """All categories together."""
    total = Tally.empty(len(next(iter(tallies.values())).offered))
    for tally in tallies.values():
        total.merge(tally)
    return total
