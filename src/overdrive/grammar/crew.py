"""Threads for work that may take very long and cannot be interrupted: what is quick does not wait behind it.

A thread that has been at one piece of work for some time no longer counts as one that is there for others, and another
is started in its place, up to a bound. Knows no grammars.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

STACK_BYTES = 512 << 20
"""Of a thread. The grammar library follows rules and references into each other by recursion, as deep as a source is
long; the usual 8 MiB would end the process. Only what is touched takes memory."""

Work = Callable[[], Any]


class Crew:
    """Owns the threads, which yield to all others where the system can do that."""

    def __init__(self, threads: int, most: int, patience: float) -> None:
        """threads: that are there for quick work. most: of all. patience: seconds after which work is not quick."""
        self._wanted, self._most, self._patience = threads, most, patience
        self._lock = threading.Lock()
        self._asked: deque[tuple[Future[Any], Work]] = deque()
        self._begun: dict[int, float] = {}  # by thread that is at work
        self._threads = 0
        self._closed = False

    def submit(self, work: Work) -> Future[Any]:
        """Have it done by a thread that is free, or will be."""
        future: Future[Any] = Future()
        with self._lock:
            self._asked.append((future, work))
        self.tend()
        return future

    def tend(self) -> None:
        """Start threads where quick work would wait for slow work; to be called now and then by whoever waits."""
        with self._lock:
            now = time.monotonic()
            slow = sum(now - begun > self._patience for begun in self._begun.values())
            idle = self._threads - len(self._begun)
            while not self._closed and len(self._asked) > idle and self._may_hire(slow):
                self._threads += 1
                idle += 1
                _start(self._run)

    def _may_hire(self, slow: int) -> bool:
        return self._threads - slow < self._wanted and self._threads < self._most

    def _run(self) -> None:
        _step_back()
        me = threading.get_ident()
        while True:
            with self._lock:
                if not self._asked or self._closed:
                    self._threads -= 1
                    return
                future, work = self._asked.popleft()
                self._begun[me] = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:  # what a panic in native code raises is no Exception
                future.set_exception(error)
            with self._lock:
                del self._begun[me]

    def close(self) -> None:
        """Begin nothing more. What is under way ends with the process."""
        with self._lock:
            self._closed = True
            left, self._asked = self._asked, deque()
        for future, _ in left:
            future.cancel()


_STARTING = threading.Lock()


def _start(work: Callable[[], None]) -> None:
    """A thread with a deep stack; the process does not wait for it to end."""
    with _STARTING:
        usual = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=work, name="grammars", daemon=True).start()
        finally:
            threading.stack_size(usual)


def _step_back() -> None:
    """The calling thread works only when no other wants to, where threads have priorities of their own (Linux)."""
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
