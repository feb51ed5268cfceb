"""Device time of each launch of a step, read when the step has settled. Where there is no device there is no time."""

from __future__ import annotations

from typing import Protocol

import torch

Seconds = tuple[float, float, float, float]


class Laps(Protocol):
    """The marks of one step."""

    def mark(self) -> None:
        """The point that everything launched so far reaches."""
        ...

    def seconds(self) -> Seconds:
        """Between the five marks of a settled step: draft, forward, accept, absorb."""
        ...


class NoLaps:
    """Nothing is measured."""

    def mark(self) -> None:
        pass

    def seconds(self) -> Seconds:
        return (0.0, 0.0, 0.0, 0.0)


class CudaLaps:
    """Events on the current stream."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def seconds(self) -> Seconds:
        """Zeros where the last mark has not been passed yet: nothing waits for a statistic."""
        if len(self._events) != 5 or not self._events[-1].query():
            return (0.0, 0.0, 0.0, 0.0)
        a, b, c, d, e = self._events
        return (a.elapsed_time(b) / 1e3, b.elapsed_time(c) / 1e3, c.elapsed_time(d) / 1e3, d.elapsed_time(e) / 1e3)
