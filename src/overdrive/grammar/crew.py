"""Threads for work that takes long in native code: they have deep stacks, and yield to all others.

What takes least is begun first, so it waits for what is under way and no other. Knows no grammars.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

STACK_BYTES = 512 << 20
"""Of a thread. The grammar library follows rules and references into each other by recursion, as deep as a source is
long; the usual 8 MiB would end the process. Only what is touched takes memory."""

Work = Callable[[], Any]


class Crew:
    """Owns the threads, which are there only while there is work."""

    def __init__(self, threads: int, nice: int) -> None:
        """nice: how far they stand back behind other threads, where the system can do that (Linux); 0 .. 19."""
        self._most, self._nice = threads, nice
        self._lock = threading.Lock()
        self._asked: list[tuple[float, int, Future[Any], Work]] = []  # a heap
        self._asks = 0
        self._threads = 0
        self._closed = False

    def submit(self, work: Work, future: Future[Any], seconds: float) -> None:
        """Have it done by a thread that is free, or will be; `future` gets what it returns or raises.

        seconds: that it is likely to take.
        """
        with self._lock:
            if self._closed:
                future.cancel()
                return
            self._asks += 1
            heapq.heappush(self._asked, (seconds, self._asks, future, work))
            if self._threads == self._most:
                return
            try:
                start_deep(self._run)
            except RuntimeError as error:  # the system has no thread to give
                if not self._threads:  # nobody will take it
                    self._asked.clear()
                    future.set_exception(error)
                return
            self._threads += 1

    def _run(self) -> None:
        with suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        while True:
            with self._lock:
                if not self._asked or self._closed or not threading.main_thread().is_alive():
                    self._threads -= 1
                    return
                _, _, future, work = heapq.heappop(self._asked)
            try:
                future.set_result(work())
            except BaseException as error:  # what a panic in native code raises is no Exception
                future.set_exception(error)

    def close(self) -> None:
        """Begin nothing more. What is under way goes on, and the process does not end before it."""
        with self._lock:
            self._closed = True
            left, self._asked = self._asked, []
        for _, _, future, _ in left:
            future.cancel()


_STARTING = threading.Lock()


def start_deep(work: Callable[[], None]) -> threading.Thread:
    """A thread with a deep stack, started.

    A process that ends waits for it: native code that comes back to an interpreter which is gone crashes.
    """
    with _STARTING:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=work, name="grammars")
            thread.start()
        finally:
            threading.stack_size(usual)
    return thread
