"""What padded drafters with a network share: tensors that say the same in every step, and passes of padded sizes.

Knows rows and numbers of tokens; never a network or what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout
from overdrive.draft.batches import passes
from overdrive.draft.uploads import upload
from overdrive.types import MAX_DRAFTS

PASS_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Tokens of passes outside of proposals; no pass is larger than the last."""


class RowNumbers:
    """numbers: 0, 1, ... firsts: all `first`, the lowest place that a network reads. As long as any step has rows."""

    def __init__(self, slots: int, first: int, device: torch.device) -> None:
        most_rows = max(PASS_TOKENS[-1], 4 * slots)  # of a step or a pass, padding included
        self.numbers = torch.arange(most_rows + 1, device=device)
        self.firsts = torch.full((most_rows,), first, dtype=torch.int64, device=device)
        self._depths = torch.arange(MAX_DRAFTS + 1, device=device).unsqueeze(1).repeat(1, most_rows)

    def layout(self, slots: Tensor, depth: int, positions: Tensor) -> Layout:
        """One draw of each row of `slots` [R], for its draft at `depth`, which will stand at `positions` [R]."""
        count = len(slots)
        return Layout(self.numbers[:count], slots, self._depths[depth, :count], positions)

    def one_each(self, ids: Tensor, places: Tensor, writes: Tensor, like: Batch) -> Batch:
        """One token for each row, all [R], padding rows included; what rows see is as in `like`."""
        count = len(ids)
        return Batch(
            ids=ids,
            positions=places,
            rows=self.numbers[:count],
            offsets=self.numbers[: count + 1],
            page_table=like.page_table,
            starts=like.starts,
            gaps=like.gaps,
            writes=writes,
            wanted=self.numbers[:count],
        )


def padded_passes(
    slots: Sequence[int], most: Sequence[int], rows: Sequence[int], spare: int, device: torch.device
) -> Iterator[tuple[Tensor, int]]:
    """Passes in which each of `slots` gets room for `most` tokens in all: a table on the device, and the pass's tokens.

    The table's lines are slots, tokens of each, and `rows`, for each slot a number of the caller's; [3, R] int64. It is
    padded to a power of two with slot `spare`, no tokens and row 0.
    """
    for chosen, counts in passes(np.array(most, np.int64), PASS_TOKENS[-1]):
        padding = [0] * ((1 << (len(chosen) - 1).bit_length()) - len(chosen))
        lines = (
            [slots[i] for i in chosen] + [spare for _ in padding],
            counts.tolist() + padding,
            [rows[i] for i in chosen] + padding,
        )
        yield upload(lines, device), next(size for size in PASS_TOKENS if size >= counts.sum())
