"""The masks of a step, written while the device is busy with the step's forward pass.

Knows constraints and sheets; never requests or a device. Most masks take 2 to 10 us in the library, which lets other
threads run meanwhile; that is less than it takes them to wake up and to wait for the interpreter, so threads share the
work only where it proves slow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from overdrive.grammar.constraint import MASK_SECONDS, Constraint
from overdrive.grammar.sheet import MaskSheet
from overdrive.grammar.together import Together

SLOW_SECONDS = 0.00006
"""Of a row, on average, for which another thread is worth being woken. A mask alone takes a sixth of it: eight threads
took five times as much of the processor for those as one. Chains of drafts with what follows them take as much or more,
most of it in the library."""

PATIENCE = 0.02
"""Seconds after which chains are not walked further: rows that are late by then may accept fewer drafts."""

FEWEST_TOGETHER = 16
"""Chains for which waking the library's threads is worth its time."""

GUARDED_STEPS = 200
"""Steps in which every row's time is counted, behind one in which all together took longer than MASK_SECONDS: a row of
20 ms a mask has used up what it may take before they end. Any that has taken longer than it may goes on alone."""

Chain = tuple[int, Constraint, Sequence[int]]
"""A row of the step, its constraint, its drafts."""

Numbered = list[tuple[int, Chain]]
"""Chains, and their numbers among those of the sheet."""


class Walker:
    """Fills sheets. Owned by the loop, whose thread takes part in the work."""

    def __init__(self, threads: int = 1, ahead: bool = True, together: Together | None = None) -> None:
        """threads: that write masks at once, the caller's among them. ahead: whether what certainly follows is to be
        written before it is known what is drawn: not where the host knows that when it builds the next step.
        together: fills many rows without drafts, where there are processors for its threads."""
        self._together = together
        self._guarded = 0  # steps in which it is not used any more
        self.ahead = ahead
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="masks")

    def fill(self, chains: Sequence[Chain], sheet: MaskSheet, drafting: bool = True) -> None:
        """Write the masks of every chain, each from its first line on; all other rows of the sheet are free.

        drafting: the next step is likely to draft, so that runs of what certainly follows are worth their time.
        """
        forced = sheet.forced if drafting and self.ahead else sheet.forced[..., :0]
        numbered = list(enumerate(chains))
        if self._together and len(chains) >= FEWEST_TOGETHER and not (forced.size or sheet.index.shape[1] > 1):
            numbered = self._fill_together(self._together, numbered, sheet)
        if self._threads > 1:
            self._share(_Filling(numbered, sheet, forced))
            return
        until = time.perf_counter() + PATIENCE
        for number, chain in numbered:
            _fill(sheet, forced, until, number, *chain)

    def _fill_together(self, together: Together, numbered: Numbered, sheet: MaskSheet) -> Numbered:
        """Fill the rows whose masks have been cheap lately at once, one line each. Returns those that are left."""
        if self._guarded:
            self._guarded -= 1
            return numbered
        places, left = [], []
        for number, chain in numbered:
            outside = chain[1].outside
            if outside is None:
                left.append((number, chain))
            else:
                places.append((outside, number))
        if len(places) < FEWEST_TOGETHER:
            return numbered
        started = time.perf_counter()
        together.fill(places, sheet.bits)
        if time.perf_counter() - started > MASK_SECONDS:  # else none of them did
            self._guarded = GUARDED_STEPS
        index, legal = sheet.index, sheet.legal
        for _, number in places:
            row, constraint, _ = numbered[number][1]
            index[row, 0] = number if constraint.confirm(sheet.bits[number]) else -1
            legal[row] = 0
        return left

    def _share(self, filling: _Filling) -> None:
        """Fill the rows, with other threads where they take long."""
        others: list[Future[None]] = []
        try:
            while filling.left:
                filling.next()
                if filling.slow and filling.left and len(others) < self._threads - 1:
                    others.append(self._pool.submit(filling.rest))
        finally:
            wait(others)  # who goes on, with an error too, has the constraints to itself again
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)


class _Filling:
    """The rows of a sheet, shared by the threads that fill it. Their count may miss some that end at once."""

    def __init__(self, numbered: Numbered, sheet: MaskSheet, forced: NDArray[np.int64]) -> None:
        self.left = deque(numbered)
        self._sheet, self._forced = sheet, forced
        self._started, self._done = time.perf_counter(), 0

    @property
    def slow(self) -> bool:
        """Whether a row takes long, on average until now."""
        return time.perf_counter() - self._started > SLOW_SECONDS * self._done

    def rest(self) -> None:
        """Fill rows until none is left."""
        while self.left:
            self.next()

    def next(self) -> None:
        """Fill the next row, if others have left one."""
        try:
            number, chain = self.left.popleft()
        except IndexError:
            return
        _fill(self._sheet, self._forced, self._started + PATIENCE, number, *chain)
        self._done += 1


def _fill(
    sheet: MaskSheet,
    forced: NDArray[np.int64],
    until: float,
    number: int,
    row: int,
    constraint: Constraint,
    drafts: Sequence[int],
) -> None:
    """The masks of one chain, the `number`-th of the sheet."""
    first, count = number * sheet.index.shape[1], len(drafts) + 1
    filled = constraint.walk(drafts, sheet.bits[first : first + count], forced[row], until)
    for position in range(filled):  # few, for which a slice takes longer
        sheet.index[row, position] = first + position
    sheet.legal[row] = max(0, filled - 1)
