"""New values of slots, on their way to the device: a step's admissions and page entries as one packed array.

The host packs, one copy crosses, one launch writes. Sizes differ from step to step: this runs outside of CUDA graphs.
Must never know requests or plans.

    data     | head of slot 0 | head of slot 1 | .. | tokens of slot 0 | pages of slot 0 | tokens of slot 1 | ..
    a head   slot, admitted, computed, tokens, tokens_at, first, pages, pages_at

An admitted slot gets its tokens, its lengths, and a page table that is 0 but for the pages given here; another slot
only the pages. Pages of one slot are one run of columns from `first` on, in which -1 leaves a column as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from overdrive.device.state import SlotState
from overdrive.types import Admission, PageEntry

HEAD = 8
"""Words of a slot's head."""

NO_PAGES: tuple[int, Sequence[int]] = (0, ())


@dataclass(frozen=True, slots=True)
class Changes:
    """data: int32, as above. slots: how many slots it changes."""

    data: Tensor
    slots: int

    def to(self, device: torch.device) -> Changes:
        """On `device`, by a copy that is not waited for."""
        return Changes(self.data.to(device, non_blocking=True), self.slots)


def pack(admissions: Sequence[Admission], entries: Sequence[PageEntry], pinned: bool = False) -> Changes:
    """What changes in a step: admissions first, then page entries, of which those of shared pages first.

    pinned: in memory that copies need not wait for; the allocator keeps it until they are done.
    """
    runs = _runs(entries)
    admitted = {admission.slot: admission for admission in admissions}
    slots = list(dict.fromkeys((*admitted, *runs)))
    heads: list[int] = []
    parts: list[Sequence[int]] = []
    at = len(slots) * HEAD
    for slot in slots:
        admission, (first, pages) = admitted.get(slot), runs.get(slot, NO_PAGES)
        tokens = admission.tokens if admission else ()
        middle = at + len(tokens)
        computed = admission.computed if admission else 0
        heads += slot, admission is not None, computed, len(tokens), at, first, len(pages), middle
        parts += tokens, pages
        at = middle + len(pages)
    data = torch.empty(at, dtype=torch.int32, pin_memory=pinned)
    data.numpy()[:] = np.fromiter(chain(heads, chain.from_iterable(parts)), dtype=np.int32, count=at)
    return Changes(data, len(slots))


def _runs(entries: Sequence[PageEntry]) -> dict[int, tuple[int, Sequence[int]]]:
    """First column and pages of each slot; -1 where a slot's entries leave columns between them."""
    runs: dict[int, tuple[int, Sequence[int]]] = {}
    for entry in sorted(entries, key=lambda entry: not entry.shared):
        run = entry.first, entry.pages
        runs[entry.slot] = _joined(runs[entry.slot], run) if entry.slot in runs else run
    return runs


def _joined(run: tuple[int, Sequence[int]], later: tuple[int, Sequence[int]]) -> tuple[int, Sequence[int]]:
    """One run of both, the later one's pages where they overlap."""
    start = min(run[0], later[0])
    joined = [-1] * (max(first + len(pages) for first, pages in (run, later)) - start)
    for first, pages in (run, later):
        joined[first - start : first - start + len(pages)] = pages
    return start, joined


def enter(state: SlotState, changes: Changes) -> None:
    """Write the changes, which are on the state's device, into the state. Nothing waits."""
    if changes.slots and changes.data.is_cuda:
        from overdrive.device.cuda import step_kernels

        step_kernels.enter(state, changes)
    elif changes.slots:
        torch_enter(state, changes)


def torch_enter(state: SlotState, changes: Changes) -> None:
    """`enter` in torch, which reads the heads on the host."""
    data = changes.data
    heads = data[: changes.slots * HEAD].view(-1, HEAD).tolist()
    for slot, admitted, computed, n_tokens, tokens_at, first, n_pages, pages_at in heads:
        if admitted:
            state.history[slot, :n_tokens] = data[tokens_at : tokens_at + n_tokens]
            state.lengths[slot] = n_tokens
            state.computed[slot] = computed
            state.page_table[slot] = 0
        columns, pages = state.page_table[slot, first : first + n_pages], data[pages_at : pages_at + n_pages]
        columns.copy_(torch.where(pages >= 0, pages, columns))
