"""Whether an engine that lives is stuck: how long nothing has been heard of it, and when that is too long.

Knows times and counts that it is told; nothing of processes, links or HTTP.
"""

from __future__ import annotations

LOOK_SECONDS = 1.0  # from one look at an engine to the next; one that serves says something twice a second


class Silence:
    """Time without a sign of life, counted only while whoever listens was awake.

    A process that was stopped, or starved of its processor, finds a long time gone by and signs of life unread: of any
    time between two looks no more than twice the usual counts.
    """

    def __init__(self, limit: float, between: float = LOOK_SECONDS) -> None:
        """limit: seconds of silence that are too long; 0 never are. between: seconds from one look to the next."""
        self._limit = limit
        self._most = 2 * between
        self._heard = -1
        self._looked = 0.0
        self._silent = 0.0

    def too_long(self, heard: int, now: float) -> bool:
        """Takes a look: whether the silence is too long by now. heard: signs of life since the engine began."""
        if heard != self._heard:
            self._silent = 0.0
        else:
            self._silent += min(now - self._looked, self._most)
        self._heard, self._looked = heard, now
        return 0 < self._limit <= self._silent
