"""The constraint of one answer: a matcher, and what comes before it.

Owned by the request, moved by commit alone. Walking a chain of drafts leaves it where it was.

        output   | free: reasoning ... marker | grammar ...... | end token
                                              ^ begun          ^ matcher.done
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from overdrive.grammar.base import GrammarFault, Matcher, Program, Words, all_but, legal


class Constraint(Protocol):
    """What a request's tokens must be. `active`: whether any draw needs a mask."""

    @property
    def active(self) -> bool: ...

    @property
    def ended(self) -> bool:
        """The grammar's end was accepted: the answer is whole."""
        ...

    def accept(self, token: int) -> None:
        """The next committed token. Raises GrammarFault where it is not legal, which ends the request."""
        ...

    def certain(self, most: int) -> tuple[int, ...]:
        """At most so many tokens that certainly follow what was accepted; for drafts."""
        ...

    def walk(
        self, drafts: Sequence[int], lines: NDArray[np.int32], forced: NDArray[np.int64], until: float = inf
    ) -> int:
        """Masks along a chain: line j of [len(drafts) + 1, W] for the token behind the first j drafts.

        Returns how many lines were written: one more than there are legal drafts, or than were walked before `until`
        (time.perf_counter); 0 where the request has come to a fault, which its next token will tell. forced:
        [len(drafts) + 1, F], line j gets what certainly follows the first j drafts.
        """
        ...


class Free:
    """Any text."""

    active = False
    ended = False

    def accept(self, token: int) -> None:
        """Every token is legal."""

    def certain(self, most: int) -> tuple[int, ...]:
        """Nothing is."""
        return ()

    def walk(
        self, drafts: Sequence[int], lines: NDArray[np.int32], forced: NDArray[np.int64], until: float = inf
    ) -> int:
        """Every draft is legal."""
        lines[:] = -1
        return len(lines)


FREE = Free()


class Marker:
    """Finds the first occurrence of a run of tokens, one token at a time (Knuth, Morris and Pratt 1977).

    A state is how many of the run's tokens the newest ones are; `len(run)` is found.
    """

    def __init__(self, run: Sequence[int]) -> None:
        self.run = tuple(run)
        self._borders = [0] * (len(self.run) + 1)  # longest proper prefix of run[:n] that is its suffix
        for n in range(1, len(self.run)):
            self._borders[n + 1] = self.next(self._borders[n], self.run[n])

    def next(self, state: int, token: int) -> int:
        """The state behind one more token; `state` is not that of a found run."""
        while state and token != self.run[state]:
            state = self._borders[state]
        return state + (token == self.run[state])


class Constrained:
    """A grammar, behind a marker where there is one. Before that all is free, but the answer cannot end."""

    active = True

    def __init__(self, program: Program, eos_ids: Sequence[int], after: Sequence[int] = ()) -> None:
        self._program = program
        self._eos_ids = tuple(eos_ids)
        self._marker = Marker(after)
        self._seen = 0  # state of the marker; the grammar has begun where it is whole
        self._matcher: Matcher = program.start()
        self._accepted: list[int] = []  # since the grammar began
        self._fault = ""

    @property
    def begun(self) -> bool:
        """Whether the grammar holds now."""
        return self._seen == len(self._marker.run)

    @property
    def ended(self) -> bool:
        return self._matcher.done

    def accept(self, token: int) -> None:
        if self._fault:
            raise GrammarFault(self._fault)
        if self.begun:
            self._matcher.accept(token)
            self._accepted.append(token)
        else:
            self._seen = self._marker.next(self._seen, token)

    def certain(self, most: int) -> tuple[int, ...]:
        return tuple(self._matcher.forced()[:most]) if self.begun and not self._fault else ()

    def walk(
        self, drafts: Sequence[int], lines: NDArray[np.int32], forced: NDArray[np.int64], until: float = inf
    ) -> int:
        seen, moved, filled = self._seen, 0, 0
        try:
            while True:
                self._fill(lines[filled], forced[filled])
                filled += 1
                at = filled - 1
                if at == len(drafts) or self._matcher.done or time.perf_counter() > until:
                    break
                if not legal(lines[at], drafts[at]):
                    break
                moved += self.begun
                self._move(drafts[at])
        except GrammarFault as fault:
            self._restart(fault if filled == 0 else None)
        else:
            self._matcher.rollback(moved)
        self._seen = seen
        return filled

    def _fill(self, line: Words, forced: NDArray[np.int64]) -> None:
        if not self.begun:
            all_but(self._eos_ids, line)
        elif self._matcher.done:
            line[:] = -1  # what is drawn behind the end is nobody's
        else:
            self._matcher.fill(line)
            if len(forced):
                certain = self._matcher.forced()[: len(forced)]
                forced[: len(certain)] = certain

    def _move(self, token: int) -> None:
        if self.begun:
            self._matcher.accept(token)
        else:
            self._seen = self._marker.next(self._seen, token)

    def _restart(self, fault: GrammarFault | None) -> None:
        """A matcher was lost on drafts that may be wrong: a new one takes its place. `fault`: it was lost for good."""
        if fault is not None:
            self._fault = str(fault)
            return
        self._matcher = self._program.start()
        for token in self._accepted:
            self._matcher.accept(token)
