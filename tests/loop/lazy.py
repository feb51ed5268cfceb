"""A stream that makes progress at random moments, and a host buffer that is poison until its event.

Finds, without a device, what only a device would show: a host that reads too early, or a launch that reads what the
host has changed meanwhile.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from overdrive.device.stream import launch_error


class LazyStream:
    """Runs launches late but in order: some at any launch, all that an event needs at its wait."""

    def __init__(self, rng: random.Random, eagerness: float = 0.3) -> None:
        self._rng = rng
        self._eagerness = eagerness
        self._queue: deque[Callable[[], None]] = deque()
        self._done = 0
        self._launched = 0
        self._error: BaseException | None = None

    def launch(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        self._launched += 1
        while self._queue and self._rng.random() < self._eagerness:
            self._run_one()

    def _run_one(self) -> None:
        work = self._queue.popleft()
        self._done += 1
        if self._error is None:
            try:
                work()
            except AssertionError:
                raise
            except Exception as error:
                self._error = error

    def record(self) -> LazyEvent:
        return LazyEvent(self, self._launched)

    def clear_error(self) -> None:
        self.close()
        self._error = None

    def close(self) -> None:
        while self._queue:
            self._run_one()


class LazyEvent:
    def __init__(self, stream: LazyStream, upto: int) -> None:
        self._stream = stream
        self._upto = upto

    def wait(self) -> None:
        while self._stream._done < self._upto:
            self._stream._run_one()
        if self._stream._error is not None:
            raise launch_error(self._stream._error) from self._stream._error
