"""Whose turn it is to be tried: grammars that nobody knows yet, on levels of which each gives them more time.

A grammar begins on the first level and, where its time there is not enough, begins again on the next, behind those that
came there before. So who needs little waits for the beginnings of others alone, however long those go on: each of them
costs it about as much as it needs itself, times the factor between two levels. Each level has places of its own, so
that none waits for those that another has taken. (By levels as in feedback queues, Corbato 1962. Beginning again wastes
less than what is used in the end, since times grow by a factor, and nothing that waits holds memory.)

Knows jobs and seconds; never processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """seconds: of the processor, for each child. children: at once. nice: how far they stand back, 0 .. 19."""

    seconds: float
    children: int
    nice: int


LEVELS = (
    Level(0.01, 2, 0),
    Level(0.03, 2, 5),
    Level(0.08, 2, 10),
    Level(0.25, 2, 13),
    Level(0.7, 2, 16),
    Level(2.0, 2, 18),
    Level(5.0, 2, 19),
)
"""Of JSONSchemaBench's schemas 95 % need the first level alone, 99 % two. The first is so short that a whole queue of
hostile grammars (`--max-queue`) passes it within the time that one that is none may take to be compiled."""


@dataclass(slots=True)
class Job:
    """A grammar that was asked about. until: when the answer is of no use any more, by time.monotonic."""

    number: int
    kind: str
    source: str
    until: float
    level: int = 0


class Turns:
    """Owns the jobs that wait, and counts those that run."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self.levels = levels
        self._waiting: tuple[deque[Job], ...] = tuple(deque() for _ in levels)
        self._running = [0] * len(levels)

    def add(self, job: Job) -> None:
        """A new one, or one that has its next level already."""
        self._waiting[job.level].append(job)

    def begin(self) -> list[Job]:
        """Those whose turn it is, which run from now on."""
        begun = []
        for number, (level, waiting) in enumerate(zip(self.levels, self._waiting, strict=True)):
            while waiting and self._running[number] < level.children:
                self._running[number] += 1
                begun.append(waiting.popleft())
        return begun

    def end(self, job: Job) -> None:
        """It runs no more."""
        self._running[job.level] -= 1

    def advance(self, job: Job) -> bool:
        """It has ended since its time was not enough: let it wait for more. False where there is no more."""
        if job.level + 1 == len(self.levels):
            return False
        job.level += 1
        self.add(job)
        return True

    def give_up(self, now: float) -> list[Job]:
        """Those that have waited until it was too late, which wait no more."""
        late = [job for waiting in self._waiting for job in waiting if now > job.until]
        for job in late:
            self._waiting[job.level].remove(job)
        return late
