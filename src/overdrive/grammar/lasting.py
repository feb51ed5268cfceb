"""A program that outlasts what its answers use up: a fresh one takes its place, compiled beside everything else.

Knows programs and who compiles; never how.

    start, start, start ... used up: ordered, answers wait | fresh, and one more ahead, so that nobody waits again
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from overdrive.grammar.base import GrammarAwaited, GrammarSpent, Matcher, Program
from overdrive.grammar.crew import Crew


class Lasting:
    """`Program` in whose place others come.

    Most are never used up, so the first successor is built when it is needed. A program that was used up once will be
    again: from then on there is one ahead, which takes as much memory.
    """

    def __init__(self, build: Callable[[], Program], crew: Crew, seconds: float) -> None:
        """build: of the first, at once, and of each that follows, by the crew. seconds: that it takes."""
        self._build = build
        self._crew = crew
        self._seconds = seconds
        self._lock = threading.Lock()
        self._current = build()
        self._fresh: list[Program] = []  # none, or the next
        self._ordered: list[Future[Program]] = []  # the newest order, if there was any

    @property
    def copies(self) -> int:
        """Programs that it holds."""
        return 1 + len(self._fresh)

    def start(self) -> Matcher:
        with self._lock:
            try:
                return self._current.start()
            except GrammarSpent:
                if not self._fresh:
                    raise GrammarAwaited(self._order()) from None
                self._current = self._fresh.pop()
                self._order()
                return self._current.start()

    def _order(self) -> Future[Program]:
        """The order under way, or a new one; it ends with this program, which can start matchers again."""
        if not self._ordered or self._ordered[0].done():
            self._ordered[:] = [Future()]
            self._crew.submit(self._renew, self._ordered[0], self._seconds)
        return self._ordered[0]

    def _renew(self) -> Lasting:
        fresh = self._build()
        with self._lock:
            self._fresh.append(fresh)
        return self
