"""Compiling grammars beside everything else: once for equal ones, within limits, and never one that was not tried.

A compilation cannot be interrupted. So it is tried first in a process that can be killed (`vetting.py`), and only what
ended there, within its limits, is compiled here, by threads that are few: a source that is quick never waits for one
that is slow. Knows sources and programs; never requests.

    ask  -->  tried elsewhere  --quick-->  2 threads  -->  program  --used up-->  1 thread  --> its successor
                   |           --slow--->  1 thread   -->
                   +--> refused: 400
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial

from overdrive.errors import BadRequest
from overdrive.grammar.base import Compiler, NotNow, Program, Vetted
from overdrive.grammar.crew import Crew
from overdrive.grammar.lasting import Lasting

THREADS = 2
"""For grammars that compile quickly; one more is there for all others."""

QUICK_SECONDS = 0.25
"""Of the processor."""

SECONDS = 20.0
"""From asking to having a program, the wait for others included."""

KEPT, KEPT_BYTES = 256, 1 << 30
"""Programs that are kept for the next request, and the most memory that compiling them took, together."""

Vet = Callable[[str, str, float], Future[Vetted]]
"""Tries a grammar, by kind and source, within so many seconds: `Vetting`."""


class Ticket:
    """A program that was asked for."""

    def __init__(self, compiled: Future[Program], seconds: float) -> None:
        self.compiled = compiled
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    @property
    def ready(self) -> bool:
        """Whether `program` has an answer."""
        return self.compiled.done() or time.monotonic() > self._deadline

    def program(self) -> Program:
        """The program. Raises BadRequest, naming what is wrong with its source; NotNow where its turn came too late."""
        if not self.compiled.done():
            raise NotNow(f"the grammar was not compiled within {self._seconds:g} seconds: there are too many at once")
        error = self.compiled.exception()
        if error is None or isinstance(error, BadRequest):
            return self.compiled.result()
        raise BadRequest(f"the grammar cannot be compiled: {error}") from error  # the library's own fault


@dataclass(slots=True)
class _Asked:
    """A program that is being compiled, or was. bytes: of memory that trying it took, once that is known."""

    compiled: Future[Program]
    bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes of what it holds."""
        made = self.compiled.done() and not self.compiled.cancelled() and not self.compiled.exception()
        program = self.compiled.result() if made else None
        return self.bytes * (program.copies if isinstance(program, Lasting) else 1)

    @property
    def of_no_use(self) -> bool:
        """It ended without a word on the grammar itself: it is to be compiled anew."""
        if not self.compiled.done():
            return False
        return self.compiled.cancelled() or isinstance(self.compiled.exception(), NotNow)


class Programs:
    """Owns the threads and the programs that were made lately."""

    def __init__(self, compiler: Compiler, vet: Vet, threads: int = THREADS, seconds: float = SECONDS) -> None:
        self._compiler = compiler
        self._vet = vet
        self._seconds = seconds
        self._quick, self._slow = Crew(threads, nice=5), Crew(1, nice=19)
        self._again = Crew(1, nice=10)  # what answers wait for is not behind what nobody has begun with
        self._kept: OrderedDict[tuple[str, str], _Asked] = OrderedDict()

    def ask(self, kind: str, source: str) -> Ticket:
        """Have a grammar compiled, unless it is or was lately. Returns at once."""
        key = kind, source
        asked = self._kept.get(key)
        if asked is None or asked.of_no_use:
            asked = self._kept[key] = _Asked(Future())
            self._vet(kind, source, self._seconds).add_done_callback(partial(self._vetted, key, asked))
        self._kept.move_to_end(key)
        self._forget()
        return Ticket(asked.compiled, self._seconds)

    def _vetted(self, key: tuple[str, str], asked: _Asked, vetted: Future[Vetted]) -> None:
        """The verdict is there, in a thread of the vet's."""
        if error := vetted.exception():
            asked.compiled.set_exception(error)
            return
        found = vetted.result()
        asked.bytes = found.bytes
        crew = self._quick if found.seconds < QUICK_SECONDS else self._slow
        build = partial(self._compiler.build, *key, found.grammar)
        crew.submit(partial(Lasting, build, self._again, found.seconds), asked.compiled, found.seconds)

    def _forget(self) -> None:
        """Let go of the programs that were asked for longest ago; those still being compiled are kept track of."""
        size = sum(asked.size for asked in self._kept.values())
        for key in list(self._kept)[:-1]:
            if len(self._kept) <= KEPT and size <= KEPT_BYTES:
                return
            if self._kept[key].compiled.done():
                size -= self._kept.pop(key).size

    def close(self) -> None:
        """Compile nothing more."""
        for crew in (self._quick, self._slow, self._again):
            crew.close()


def wait_for(tickets: Iterable[Ticket], seconds: float) -> None:
    """Returns when one of them has its program, after `seconds` at the latest."""
    wait([ticket.compiled for ticket in tickets], seconds, FIRST_COMPLETED)
