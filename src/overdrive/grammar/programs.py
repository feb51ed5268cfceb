"""Compiling grammars on threads of their own, once for equal ones, within limits.

A compilation cannot be interrupted; what bounds it is the size of its source and the library's own limits. Its threads
yield to all others, and one that is slow is joined by another, so a hostile grammar holds nobody up. Knows sources and
programs; never requests.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from overdrive.errors import BadRequest
from overdrive.grammar.base import Compiler, Program
from overdrive.grammar.crew import Crew

THREADS, MOST_THREADS = 2, 12
"""For grammars that compile quickly, and with those that take longer."""

PATIENCE = 1.0
"""Seconds that most grammars take a small part of."""

SECONDS = 20.0
"""From asking to having a program, the wait for others included."""

KEPT, KEPT_BYTES = 256, 16 << 20
"""Programs that are kept for the next request, and the most bytes of their sources together."""


class Ticket:
    """A program that was asked for."""

    def __init__(self, compiled: Future[Program], seconds: float, tend: Callable[[], None] = lambda: None) -> None:
        """tend: looks after those who compile, while anybody waits."""
        self.compiled = compiled
        self._tend = tend
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    @property
    def ready(self) -> bool:
        """Whether `program` has an answer."""
        if self.compiled.done():
            return True
        self._tend()
        return time.monotonic() > self._deadline

    def program(self) -> Program:
        """The program. Raises BadRequest, naming what is wrong with its source, or that it took too long."""
        if not self.compiled.done():
            raise BadRequest(f"the grammar was not compiled within {self._seconds:g} seconds")
        error = self.compiled.exception()
        if error is None or isinstance(error, BadRequest):
            return self.compiled.result()
        raise BadRequest(f"the grammar cannot be compiled: {error}") from error  # the library's own fault


class Programs:
    """Owns the threads and the programs that were made lately."""

    def __init__(
        self, compiler: Compiler, threads: int = THREADS, seconds: float = SECONDS, patience: float = PATIENCE
    ) -> None:
        self._compiler = compiler
        self._seconds = seconds
        self._crew = Crew(threads, max(threads, MOST_THREADS), patience)
        self._kept: OrderedDict[tuple[str, str], Future[Program]] = OrderedDict()

    def ask(self, kind: str, source: str) -> Ticket:
        """Have a grammar compiled, unless it is or was lately. Returns at once."""
        key = kind, source
        compiled = self._kept.get(key)
        if compiled is None or _spent(compiled):
            compiled = self._kept[key] = self._crew.submit(partial(self._compiler, kind, source))
        self._kept.move_to_end(key)
        self._forget()
        return Ticket(compiled, self._seconds, self._crew.tend)

    def _forget(self) -> None:
        """Let go of the programs that were asked for longest ago; those still being compiled are kept track of."""
        size = sum(len(source) for _, source in self._kept)
        for key in list(self._kept)[:-1]:
            if len(self._kept) <= KEPT and size <= KEPT_BYTES:
                return
            if self._kept[key].done():
                size -= len(key[1])
                del self._kept[key]

    def close(self) -> None:
        """Compile nothing more."""
        self._crew.close()


def _spent(compiled: Future[Program]) -> bool:
    """Whether there is a program that is of no use any more."""
    return compiled.done() and compiled.exception() is None and compiled.result().spent


def wait_for(tickets: Iterable[Ticket], seconds: float) -> None:
    """Returns when one of them has its program, after `seconds` at the latest."""
    wait([ticket.compiled for ticket in tickets], seconds, FIRST_COMPLETED)
