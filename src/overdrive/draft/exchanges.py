"""Which of a slot's pages are exchanged for equal ones of the prefix cache, as the host can tell.

A page is given out anew while a slot that sits out a step still has it in the device's table, so what lies in an
exchanged page may not be the slot's any more. Entries alone decide that, and the host sees all of them. Knows page
numbers and steps; nothing of what a page holds.
"""

from __future__ import annotations

from typing import NamedTuple

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
    """The page table of each slot as entries make it, and how often each page was given out. Lists: most steps give a
    page to a few slots."""

    def __init__(self, slots: int, columns: int, n_pages: int) -> None:
        self._nothing = [(0, 0)] * columns
        self._tables = [self._nothing.copy() for _ in range(slots)]  # page, and how often it had been given out then
        self._times = [0] * n_pages

    def enter(self, step: Step) -> list[Exchange]:
        """Follow a step's admissions and entries; what they exchange, in the order of `PageEntry`s."""
        for admission in step.admissions:
            self._tables[admission.slot] = self._nothing.copy()
        exchanges: list[Exchange] = []
        for entry in step.page_entries:
            if entry.shared:
                exchanges += self._exchanges(entry)
        for entry in step.page_entries:
            if not entry.shared:
                for page in entry.pages:
                    self._times[page] += 1
                self._write(entry)
        return exchanges

    def _exchanges(self, entry: PageEntry) -> list[Exchange]:
        table, found = self._tables[entry.slot], []
        for column, page in enumerate(entry.pages, start=entry.first):
            old, times = table[column]
            if old not in (0, page):
                found.append(Exchange(entry.slot, column, old, page, int(times == self._times[old])))
        self._write(entry)
        return found

    def _write(self, entry: PageEntry) -> None:
        table = self._tables[entry.slot]
        for column, page in enumerate(entry.pages, start=entry.first):
            table[column] = page, self._times[page]


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
