"""Where launches run: in order, perhaps later, never waited for except through an event.

This order is what the engine relies on everywhere: whatever a launch reads or writes, every earlier launch has finished
with. So a page or slot freed by the host can be given to a later launch at once.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

from overdrive.errors import OutOfDeviceMemory

Launch = Callable[[], None]


class StreamError(RuntimeError):
    """A launch failed; everything launched after it was skipped. `__cause__` is the failure."""


RAISED = "Raised at (most recent call last):\n"


def let_go(error: BaseException) -> BaseException:
    """The same error, without the calls that it came through and what they held; a note says where they were.

    Memory that was scarce is free once they are forgotten. And an error that is kept would keep whoever called them,
    with the requests of the step, in a cycle that only a later garbage collection ends. Raises nothing: where there is
    no room for a note, there is none.
    """
    chain: list[BaseException] = [error]
    seen = {id(error)}  # an error may compare in a way of its own
    for one in chain:
        if one.__traceback__ is not None:
            with suppress(Exception):
                _note(one)
            traceback.clear_frames(one.__traceback__)
            one.__traceback__ = None
        within = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for other in (one.__cause__, one.__context__, *within):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                chain.append(other)
    return error


def _note(error: BaseException) -> None:
    """Where it was raised; the first time is enough of one that is raised again and again."""
    if not any(str(note).startswith(RAISED) for note in getattr(error, "__notes__", ())):
        error.add_note("".join([RAISED, *traceback.format_tb(error.__traceback__)]))


def launch_error(error: BaseException) -> RuntimeError:
    """What those who wait are told: StreamError, or OutOfDeviceMemory where that is what failed."""
    if isinstance(error, OutOfDeviceMemory | MemoryError | torch.OutOfMemoryError):
        return OutOfDeviceMemory(str(error))
    return StreamError(str(error))


class Event(Protocol):
    """A point in a stream."""

    def wait(self) -> None:
        """Block until every launch before this point has run. Raises `launch_error` of the first one that failed."""
        ...


class Point(Protocol):
    """A point in a device's own queue, as its driver tells of it."""

    def query(self) -> bool:
        """Whether everything before it has run."""
        ...

    def synchronize(self) -> None:
        """Block until everything before it has run."""
        ...


Wait = Callable[[Point], None]
"""How a host waits for a point. Raises RuntimeError when it will never come."""


def synchronize(point: Point) -> None:
    """`Wait` for what this device does alone."""
    point.synchronize()


class Stream(Protocol):
    """Runs launches one after the other."""

    def launch(self, work: Launch) -> None:
        """Queue `work`. It must touch only device state, its own arguments and buffers read after an event."""
        ...

    def record(self) -> Event:
        """The point after everything launched so far."""
        ...

    def clear_error(self) -> None:
        """Accept launches again after a failure. What was launched behind it never runs."""
        ...

    def close(self) -> None:
        """Run what is queued, then stop."""
        ...


class _Done:
    """An event whose launches have run already."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def wait(self) -> None:
        if self._error is not None:
            raise launch_error(self._error) from self._error


class _Chain:
    """Runs work until a piece of it fails; what follows is skipped."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def run(self, work: Launch) -> None:
        if self.error is None:
            try:
                work()
            except Exception as error:
                self.error = let_go(error)


class InlineStream:
    """Runs each launch at once, in the caller's thread: no overlap."""

    def __init__(self, setup: Launch = lambda: None) -> None:
        """setup: run once in the thread that will run the launches (thread counts, inference mode)."""
        self._chain = _Chain()
        setup()

    def launch(self, work: Launch) -> None:
        self._chain.run(work)

    def record(self) -> Event:
        return _Done(self._chain.error)

    def clear_error(self) -> None:
        self._chain.error = None

    def close(self) -> None:
        pass


class _Mark:
    """A point in a ThreadStream's queue."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        self.reached.wait()
        if self.error is not None:
            raise launch_error(self.error) from self.error


class ThreadStream:
    """Runs launches on a worker thread, so that host work goes on meanwhile (torch and numba release the GIL)."""

    def __init__(self, setup: Launch = lambda: None) -> None:
        """setup: run once on the worker, since thread counts of torch and numba belong to the calling thread."""
        self._queue: queue.SimpleQueue[Launch | _Mark | None] = queue.SimpleQueue()
        self._chain = _Chain()
        self._thread = threading.Thread(target=self._work, args=(setup,), name="device-stream", daemon=True)
        self._thread.start()

    def _work(self, setup: Launch) -> None:
        self._chain.run(setup)
        while (item := self._queue.get()) is not None:
            if isinstance(item, _Mark):
                item.error = self._chain.error
                item.reached.set()
            else:
                self._chain.run(item)

    def launch(self, work: Launch) -> None:
        self._queue.put(work)

    def record(self) -> Event:
        mark = _Mark()
        self._queue.put(mark)
        return mark

    def clear_error(self) -> None:
        """What was launched behind the failure is skipped first: it must not run once all is well again."""
        mark = _Mark()
        self._queue.put(mark)
        mark.reached.wait()
        self._chain.error = None

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
