"""The masks of a step, written by a few threads while the device is busy with the step's forward pass.

Knows constraints and sheets; never requests or a device. A mask takes 5 to 500 us, nearly all of it in the library,
which lets other threads run meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from overdrive.grammar.constraint import Constraint
from overdrive.grammar.sheet import MaskSheet

FEWEST_ROWS = 4
"""Rows for which a thread is worth being woken."""

PATIENCE = 0.02
"""Seconds after which chains are not walked further: rows that are late by then may accept fewer drafts."""

Chain = tuple[int, Constraint, Sequence[int]]
"""A row of the step, its constraint, its drafts."""


class Walker:
    """Fills sheets. Owned by the loop, whose thread takes part in the work."""

    def __init__(self, threads: int = 1, ahead: bool = True) -> None:
        """threads: that write masks at once, the caller's among them. ahead: whether what certainly follows is to be
        written before it is known what is drawn: not where the host knows that when it builds the next step."""
        self._threads, self._ahead = threads, ahead
        self._pool = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="masks")

    def fill(self, chains: Sequence[Chain], sheet: MaskSheet, drafting: bool = True) -> None:
        """Write the masks of every chain, each from its first line on; all other rows of the sheet are free.

        drafting: the next step is likely to draft, so that runs of what certainly follows are worth their time.
        """
        forced = sheet.forced if drafting and self._ahead else sheet.forced[..., :0]
        until = time.perf_counter() + PATIENCE
        parts = max(1, min(self._threads, len(chains) // FEWEST_ROWS))
        numbered = list(enumerate(chains))
        others = [self._pool.submit(_fill, numbered[part::parts], sheet, forced, until) for part in range(1, parts)]
        try:
            _fill(numbered[0::parts], sheet, forced, until)
        finally:
            wait(others)  # who goes on, with an error too, has the constraints to itself again
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)


def _fill(chains: Sequence[tuple[int, Chain]], sheet: MaskSheet, forced: NDArray[np.int64], until: float) -> None:
    queries = sheet.index.shape[1]
    for number, (row, constraint, drafts) in chains:
        first, count = number * queries, len(drafts) + 1
        filled = constraint.walk(drafts, sheet.bits[first : first + count], forced[row], until)
        sheet.index[row, :filled] = range(first, first + filled)
        sheet.legal[row] = max(0, filled - 1)
