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

from overdrive.grammar.base import Lines
from overdrive.grammar.constraint import Constraint
from overdrive.grammar.sheet import MaskSheet

SLOW_SECONDS = 0.00006
"""Of a row, on average, for which another thread is worth being woken. A mask alone takes a sixth of it: eight threads
took five times as much of the processor for those as one. Chains of drafts with what follows them take as much or more,
most of it in the library."""

PATIENCE = 0.02
"""Seconds after which chains are not walked further: rows that are late by then may accept fewer drafts."""

Chain = tuple[int, Constraint, Sequence[int]]
"""A row of the step, its constraint, its drafts."""


Numbered = tuple[int, Chain]
"""With its place among the chains of its sheet."""


class Walker:
    """Fills sheets. Owned by the loop, whose thread takes part in the work."""

    def __init__(self, threads: int = 1, ahead: bool = True) -> None:
        """threads: that write masks at once, the caller's among them. ahead: whether what certainly follows is to be
        written before it is known what is drawn: not where the host knows that when it builds the next step."""
        self.ahead = ahead
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="masks")

    def fill(self, chains: Sequence[Chain], sheet: MaskSheet, drafting: bool = True) -> None:
        """Write the masks of every chain, each from its first line on; all other rows of the sheet are free.

        drafting: the next step is likely to draft, so that runs of what certainly follows are worth their time.
        """
        forced = sheet.forced if drafting and self.ahead else sheet.forced[..., :0]
        left = list(enumerate(chains))
        if sheet.index.shape[1] == 1 and not forced.size:
            left = _write(left, sheet)
        if self._threads > 1:
            self._share(_Filling(left, sheet, forced))
            return
        until = time.perf_counter() + PATIENCE
        for number, chain in left:
            _fill(sheet, forced, until, number, *chain)

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

    def __init__(self, chains: Sequence[Numbered], sheet: MaskSheet, forced: NDArray[np.int64]) -> None:
        self.left = deque(chains)
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


def _write(chains: Sequence[Numbered], sheet: MaskSheet) -> list[Numbered]:
    """The masks of rows without drafts, as far as a library can write them all alone, and for as long as that is quick.
    Returns the others, which threads may share."""
    lines, started = Lines.of(sheet.bits), time.perf_counter()
    written: list[tuple[int, int]] = []
    left: list[Numbered] = []
    for done, (number, chain) in enumerate(chains):
        if done and time.perf_counter() - started > SLOW_SECONDS * done:
            left += chains[done:]
            break
        if chain[1].write(lines, number):
            written.append((chain[0], number))
        else:
            left.append((number, chain))
    if written:
        rows, numbers = zip(*written, strict=True)
        sheet.index[rows, 0] = numbers
        sheet.legal[list(rows)] = 0
    return left


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
