"""Which of a slot's pages are exchanged for equal ones of the prefix cache, as the host can tell.

A page is given out anew while a slot that sits out a step still has it in the device's table, so what lies in an
exchanged page may not be the slot's any more. Entries alone decide that, and the host sees all of them. Knows page
numbers and steps; nothing of what a page holds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overdrive.types import PageEntry, Step


class Exchange(NamedTuple):
    """The page `old` at `column` of `slot` becomes `page`, of the same tokens. owned: 1 where `old` still holds what
    the slot stored there."""

    slot: int
    column: int
    old: int
    page: int
    owned: int


class PageMirror:
    """The page table of each slot as entries make it, and how often each page was given out."""

    def __init__(self, slots: int, columns: int, n_pages: int) -> None:
        self._table, self._given = np.zeros((2, slots, columns), np.int64)
        self._times = np.zeros(n_pages, np.int64)

    def enter(self, step: Step) -> list[Exchange]:
        """Follow a step's admissions and entries; what they exchange, in the order of `PageEntry`s."""
        for admission in step.admissions:
            self._table[admission.slot] = 0
        exchanges: list[Exchange] = []
        for entry in sorted(step.page_entries, key=lambda entry: not entry.shared):
            exchanges += self._enter(entry)
        return exchanges

    def _enter(self, entry: PageEntry) -> list[Exchange]:
        pages, slot = np.array(entry.pages), entry.slot
        columns = slice(entry.first, entry.first + len(pages))
        replaced: list[Exchange] = []
        if entry.shared:
            old = self._table[slot, columns]
            owned = self._given[slot, columns] == self._times[old]
            replaced = [
                Exchange(slot, entry.first + at, int(old[at]), entry.pages[at], int(owned[at]))
                for at in np.flatnonzero((old != 0) & (old != pages)).tolist()
            ]
        else:
            self._times[pages] += 1
        self._table[slot, columns] = pages
        self._given[slot, columns] = self._times[pages]
        return replaced


def rounds(exchanges: list[Exchange]) -> list[list[Exchange]]:
    """The same in order, cut so that no page is exchanged for twice in a round."""
    cut: list[list[Exchange]] = []
    seen: dict[int, int] = {}
    for exchange in exchanges:
        number = seen[exchange.page] = seen.get(exchange.page, -1) + 1
        if number == len(cut):
            cut.append([])
        cut[number].append(exchange)
    return cut
