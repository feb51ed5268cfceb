"""The constraint of one answer: a matcher, and what comes before it.

Owned by the request, moved by commit alone. Walking a chain of drafts leaves it where it was.

        output   | free: reasoning ... marker | grammar ...... | end token
                                              ^ begun          ^ matcher.done
        output   | free: text ... trigger | grammar: tool calls | end token      (or free text alone)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from overdrive.grammar.base import (
    GrammarAwaited,
    GrammarFault,
    GrammarLimit,
    Lines,
    Matcher,
    Program,
    Words,
    all_but,
    legal,
)
from overdrive.grammar.lead import AT_ONCE, Lead

MASK_SECONDS = 0.005
"""What a mask may take of the processor in the long run; nearly all take a hundredth of that."""

SPARE_SECONDS = 1.0
"""What masks may take beyond it at times: the first ones of a large grammar do."""


TRIES = 3
"""How often a token that is beyond the limits is tried: each try has the library's limits anew, and goes on from what
those before it found, or has a lexer that nobody has used."""


Runs = list[tuple[list[int], NDArray[np.int64]]]
"""What follows certainly where a word ends: the first tokens, and all as [B, F], -1 beyond. Or nothing is known."""


class Constraint(Protocol):
    """What a request's tokens must be. `active`: whether any draw needs a mask."""

    @property
    def active(self) -> bool: ...

    @property
    def awaited(self) -> Future[Program] | None:
        """What must end before the answer can go on, by `resume`; None but for when its program is compiled anew.

        Steps that hold it meanwhile draw tokens that are nobody's.
        """
        ...

    def resume(self) -> None:
        """Go on, since what was awaited has ended and no launched step holds the answer any more."""
        ...

    @property
    def ended(self) -> bool:
        """The grammar's end was accepted: the answer is whole."""
        ...

    def accept(self, token: int) -> None:
        """The next committed token. Raises GrammarFault where it is not legal, GrammarLimit where the grammar cannot be
        followed so far: both end the request. GrammarAwaited: it is not taken, and the answer has to wait."""
        ...

    def certain(self, most: int) -> tuple[int, ...]:
        """At most so many tokens that certainly follow what was accepted; for drafts."""
        ...

    def walk(
        self, drafts: Sequence[int], lines: NDArray[np.int32], forced: NDArray[np.int64], until: float = inf
    ) -> int:
        """Masks along a chain: line j of [len(drafts) + 1, W] for the token behind the first j drafts.

        Returns how many lines were written: one more than there are legal drafts, or than were walked before `until`
        (time.perf_counter); 0 where the request has come to a fault or must wait, as its next token will tell. forced:
        [len(drafts) + 1, B, F], line j gets runs of what certainly follows the first j drafts, `Matcher.branches`.
        """
        ...

    def write(self, lines: Lines, line: int) -> bool:
        """`walk` where nothing is drafted and no runs are wanted, in half the time. False where `walk` has to do it."""
        ...


class Free:
    """Any text."""

    active = False
    ended = False
    awaited = None

    def resume(self) -> None:
        """Nothing is ever awaited."""

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

    def write(self, lines: Lines, line: int) -> bool:
        """It is no library's mask."""
        return False


FREE = Free()


class Constrained:
    """A grammar, and what comes before it."""

    active = True

    def __init__(self, program: Program, eos_ids: Sequence[int], lead: Lead = AT_ONCE) -> None:
        self._program = program
        self._eos_ids = tuple(eos_ids)
        self._lead = lead
        self._seen = 0  # state of the lead
        self._matcher: Matcher = program.start()
        self._lost = False  # the matcher, which is of no use any more
        self._accepted: list[int] = []  # since the grammar began
        self._fault = ""
        self._awaited: Future[Program] | None = None
        self._tries = 0  # of the next token that came to nothing
        self._runs: Runs = []  # behind the word that the answer is in
        self._spare = SPARE_SECONDS  # of the processor's time, for masks that take longer than usual
        self._slow = False  # masks once took longer than they may, or waited for a core

    @property
    def begun(self) -> bool:
        """Whether the grammar holds now."""
        return self._seen == self._lead.end

    @property
    def ended(self) -> bool:
        return not self._lost and self._matcher.done

    @property
    def awaited(self) -> Future[Program] | None:
        return self._awaited

    def resume(self) -> None:
        self._awaited = None

    def accept(self, token: int) -> None:
        if self._fault:
            raise GrammarLimit(self._fault)
        if self._awaited:
            raise GrammarAwaited(self._awaited)
        if not self.begun:
            self._seen = self._lead.next(self._seen, token)
            return
        try:
            self._accept(token)
        except GrammarAwaited as wait:
            self._awaited = wait.ready
            raise
        self._accepted.append(token)
        self._tries = 0
        if self._runs and not self._matcher.goes_on(token):
            self._runs = []

    def _accept(self, token: int) -> None:
        if self._lost:
            self._restart()
        try:
            self._matcher.accept(token)
        except GrammarLimit as limit:
            self._give_up_matcher(limit)
            self._restart()
            self._matcher.accept(token)

    def certain(self, most: int) -> tuple[int, ...]:
        return tuple(self._matcher.forced()[:most]) if self.begun and not (self._fault or self._lost) else ()

    def walk(
        self, drafts: Sequence[int], lines: NDArray[np.int32], forced: NDArray[np.int64], until: float = inf
    ) -> int:
        if self._awaited:
            return 0
        clock = time.thread_time if self._slow else time.perf_counter
        seen, moved, filled, started = self._seen, 0, 0, clock()
        try:
            self._runs = runs = self._fill_first(lines[0], forced[0])
            filled = 1
            while filled <= len(drafts) and not self._matcher.done and time.perf_counter() <= until:
                draft = drafts[filled - 1]
                if not legal(lines[filled - 1], draft):
                    break
                moved += self.begun
                self._move(draft)
                if runs and not self._matcher.goes_on(draft):
                    runs = []
                runs = self._fill(lines[filled], forced[filled], runs)
                filled += 1
            if moved:
                self._matcher.rollback(moved)
        except GrammarAwaited as wait:
            self._awaited = wait.ready
        except GrammarFault as fault:
            self._recover(fault, filled)
        self._seen = seen
        self._spend(filled * MASK_SECONDS, clock() - started)
        return filled

    def write(self, lines: Lines, line: int) -> bool:
        if self._slow or self._awaited or self._lost or not self.begun:
            return False
        started = time.perf_counter()
        written = self._matcher.write(lines, line)
        self._spend(MASK_SECONDS, time.perf_counter() - started)
        self._runs = []
        return written

    def _spend(self, allowed: float, taken: float) -> None:
        """Seconds that masks were allowed and took.

        Asking for the processor's time is a system call: two of them take 10 us behind a forward pass. So the wall's
        clock is asked first; what it finds slow may have waited for a core, and is not held against the grammar.
        """
        if taken > allowed and not self._slow:
            self._slow = True
            return
        self._spare = min(SPARE_SECONDS, self._spare + allowed - taken)
        if self._spare < 0:
            self._fault = "the grammar takes too long to follow; simplify it"

    def _fill(self, line: Words, forced: NDArray[np.int64], runs: Runs) -> Runs:
        """Of one position. runs: behind the word that goes on here; they are written where nothing is certain.

        Returns those behind the word here. Finding them takes longer than all else, and in a word they stay the same.
        """
        if not self.begun:
            if self._lead.may_end(self._seen):
                line[:] = -1
            else:
                all_but(self._eos_ids, line)
        elif self._matcher.done:
            line[:] = -1  # what is drawn behind the end is nobody's
        else:
            self._matcher.fill(line)
            if forced.shape[1]:  # somebody wants to know
                return self._write_runs(line, forced, runs)
        return []

    def _write_runs(self, line: Words, forced: NDArray[np.int64], runs: Runs) -> Runs:
        longest = forced.shape[1]
        if certain := self._matcher.forced()[:longest]:
            forced[0, : len(certain)] = certain
            return []
        if runs and all(legal(line, first) for first in runs[0][0]):
            forced[:] = runs[0][1]
            return runs
        found = self._matcher.branches(line, len(forced))
        for number, run in enumerate(found):
            forced[number, : len(run)] = run[:longest]
        return [([run[0] for run in found], forced.copy())] if found else []

    def _move(self, token: int) -> None:
        if self.begun:
            self._matcher.accept(token)
        else:
            self._seen = self._lead.next(self._seen, token)

    def _fill_first(self, line: Words, forced: NDArray[np.int64]) -> Runs:
        """The mask of the committed state, which the answer cannot do without."""
        while True:
            try:
                if self._lost:
                    self._restart()
                return self._fill(line, forced, self._runs)
            except GrammarLimit as limit:
                self._give_up_matcher(limit)

    def _give_up_matcher(self, limit: GrammarLimit) -> None:
        """The matcher ran into this limit. Raises it again where the answer comes no further with any."""
        self._lost = True
        self._tries += 1
        if self._tries == TRIES:
            raise limit

    def _recover(self, fault: GrammarFault, filled: int) -> None:
        """A matcher was lost on drafts, which may be wrong, and is replaced; without any mask it is lost for good."""
        self._lost = True
        if not filled:
            self._fault = str(fault)
            return
        with suppress(GrammarFault, GrammarAwaited):  # what is wrong shows again when the matcher is needed
            self._restart()

    def _restart(self) -> None:
        """A new matcher where the old one stood, which is of no use any more."""
        self._lost = True
        matcher = self._program.start()
        for token in self._accepted:
            matcher.accept(token)
        self._matcher, self._lost = matcher, False
