"""What the host knows of a network's lag: the most pairs or tokens of each slot that it may have to read.

On a device that runs behind the host, lengths are bounds here, and so is what is lacking. Everything but the bound is
worked out on the device. Knows steps; never tensors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from overdrive.types import Row, Step

WIDTHS = (2, 4, 8, 16)
"""Most tokens that a proposal reads of a row: after steps with 1, 3, 7 and 15 drafts. Who may lack more is read before
it."""


def feeds_prompt(row: Row) -> bool:
    """Whether the row feeds known tokens beside its newest one."""
    return row.known > 1 or not row.emits


class LagBounds:
    """bounds[slot]: most tokens that a proposal must read of the slot. window: more than these can never be read."""

    def __init__(self, slots: int, window: int) -> None:
        self._bounds = [0] * slots
        self._window = window

    def __getitem__(self, slot: int) -> int:
        return self._bounds[slot]

    def admit(self, slot: int, lacked: int) -> None:
        """A slot begins with so much that a proposal would read."""
        self._bounds[slot] = lacked

    def beyond(self, step: Step) -> list[int]:
        """Slots that draft in this step and may lack more than any proposal reads."""
        return [row.slot for row in step.rows if row.drafts and self._bounds[row.slot] > WIDTHS[-1]]

    def width(self, step: Step) -> int:
        """The least of WIDTHS that holds what every row that drafts may lack."""
        most = max((self._bounds[row.slot] for row in step.rows if row.drafts), default=0)
        return WIDTHS[bisect_left(WIDTHS, most)]

    def read(self, slots: Iterable[int]) -> None:
        """All of these slots but the newest was read."""
        for slot in slots:
            self._bounds[slot] = 1

    def follow(self, step: Step) -> None:
        """The step is launched: its proposal, if rows draft, has read what they lacked; every row grows.

        What is older than the window cannot be read any more, but for prompts, which are read from their step.
        """
        for row in step.rows:
            lacked = 0 if row.drafts else self._bounds[row.slot]
            grown = lacked + row.known + row.drafts
            self._bounds[row.slot] = grown if feeds_prompt(row) else min(grown, self._window)
