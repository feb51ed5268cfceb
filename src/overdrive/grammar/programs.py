"""Compiling grammars on threads of their own, once for equal ones, within limits.

A compilation cannot be interrupted; what bounds it is the size of its source and the library's own limits. Its threads
yield to all others where the system can do that, so a hostile grammar slows nobody down. Knows sources and programs;
never requests.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

from overdrive.errors import BadRequest
from overdrive.grammar.base import Compiler, Program

THREADS = 2
SECONDS = 20.0
"""From asking to having a program, the wait for others included."""

STACK_BYTES = 512 << 20
"""Of a compiling thread. The library follows rules and references into each other by recursion, as deep as a source is
long; the usual 8 MiB would end the process. Only what is touched takes memory."""

KEPT, KEPT_BYTES = 256, 16 << 20
"""Programs that are kept for the next request, and the most bytes of their sources together."""


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
        """The program. Raises BadRequest, naming what is wrong with its source, or that it took too long."""
        if not self.compiled.done():
            raise BadRequest(f"the grammar was not compiled within {self._seconds:g} seconds")
        error = self.compiled.exception()
        if error is None or isinstance(error, BadRequest):
            return self.compiled.result()
        raise BadRequest(f"the grammar cannot be compiled: {error}") from error  # the library's own fault


class Programs:
    """Owns the threads and the programs that were made lately."""

    def __init__(self, compiler: Compiler, threads: int = THREADS, seconds: float = SECONDS) -> None:
        self._compiler = compiler
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grammars", initializer=_step_back)
        self._kept: OrderedDict[tuple[str, str], Future[Program]] = OrderedDict()

    def ask(self, kind: str, source: str) -> Ticket:
        """Have a grammar compiled, unless it is or was lately. Returns at once."""
        key = kind, source
        compiled = self._kept.get(key)
        if compiled is None or _spent(compiled):
            with _deep_stacks():  # the pool starts its threads as they are needed
                compiled = self._kept[key] = self._pool.submit(self._compiler, kind, source)
        self._kept.move_to_end(key)
        self._forget()
        return Ticket(compiled, self._seconds)

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
        self._pool.shutdown(wait=False, cancel_futures=True)


def _spent(compiled: Future[Program]) -> bool:
    """Whether there is a program that is of no use any more."""
    return compiled.done() and compiled.exception() is None and compiled.result().spent


def wait_for(tickets: Iterable[Ticket], seconds: float) -> None:
    """Returns when one of them has its program, after `seconds` at the latest."""
    wait([ticket.compiled for ticket in tickets], seconds, FIRST_COMPLETED)


@contextmanager
def _deep_stacks() -> Iterator[None]:
    """Threads that are started here have stacks of STACK_BYTES."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(usual)


def _step_back() -> None:
    """The calling thread works only when no other wants to, where threads have priorities of their own (Linux)."""
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
