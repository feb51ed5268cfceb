"""Steps as a trace that ui.perfetto.dev and chrome://tracing read: the host's work, the device's, plans and reasons.

    host     | schedule n | launch n | wait n-1 | settle n-1 | schedule n+1 | ..
    device        | draft n | forward n | accept n | absorb n | draft n+1 ..
    plan     K and rows of each step as it settles

The device tells how long its launches took, not when: they are drawn one behind the other, from the step's launch or
from the end of the step before, whichever is later. The file is an array of events, one a line, and each step's are
written at once: where a process ends early only the closing bracket is missing, which readers of this format allow.
Format: Chrome's Trace Event Format, complete (X), counter (C) and metadata (M) events; times are microseconds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError
from overdrive.loop import Turn
from overdrive.types import LAUNCHES

log = logging.getLogger("overdrive.trace")

HOST, DEVICE = 1, 2

Event = dict[str, Any]


class Trace:
    """A trace file that grows by every settled step, until the disk has no room: that ends the trace and no answer."""

    def __init__(self, path: Path) -> None:
        """Raises OverdriveError, one line, where the file cannot be written."""
        self._device_free = 0.0
        self._begun = False
        try:
            self._file = path.open("w", encoding="utf-8")
            self._write(_name(thread, name) for thread, name in ((HOST, "host"), (DEVICE, "device")))
        except OSError as error:
            raise OverdriveError(f"--trace: cannot write {path}: {error.strerror or error}") from None

    def add(self, turn: Turn) -> None:
        """A step has settled."""
        if self._file.closed:
            return
        try:
            self._write((*_host(turn), *self._device(turn), _counters(turn)))
        except OSError as error:
            log.warning("the trace ends with step %d: %s", turn.step.number, error.strerror or error)
            with suppress(OSError):  # which tries once more to write what is left
                self._file.close()

    def close(self) -> None:
        """Complete the array."""
        with suppress(OSError, ValueError):  # ValueError where it has ended
            self._file.write("\n]\n")
            self._file.close()

    def _device(self, turn: Turn) -> Iterator[Event]:
        begin = max(turn.built, self._device_free)
        for name, seconds in zip(LAUNCHES, turn.outcome.seconds, strict=True):
            if seconds:
                yield _span(DEVICE, name, begin, begin + seconds, {"step": turn.step.number})
                begin += seconds
        self._device_free = begin

    def _write(self, events: Iterator[Event] | tuple[Event, ...]) -> None:
        for event in events:
            self._file.write(",\n" if self._begun else "[\n")
            self._file.write(json.dumps(event, separators=(",", ":")))
            self._begun = True
        self._file.flush()


def _host(turn: Turn) -> Iterator[Event]:
    step = turn.step
    number = {"step": step.number}
    told = {**number, "rows": len(step.rows), "tokens": step.tokens, "drafts": step.plan.drafts}
    yield _span(HOST, "schedule", turn.scheduled, turn.built, {**told, "why": asdict(step.plan.why)})
    yield _span(HOST, "launch", turn.built, turn.launched, number)
    yield _span(HOST, "wait", turn.waited, turn.arrived, number)
    new = {**number, "offered": int(turn.outcome.offered.sum()), "tokens": int(turn.outcome.counts.sum())}
    yield _span(HOST, "settle", turn.arrived, turn.settled, new)


def _span(thread: int, name: str, begin: float, end: float, args: dict[str, Any]) -> Event:
    span = {"name": name, "ph": "X", "pid": 1, "tid": thread}
    return {**span, "ts": round(begin * 1e6, 1), "dur": round((end - begin) * 1e6, 1), "args": args}


def _counters(turn: Turn) -> Event:
    args = {"drafts": turn.step.plan.drafts, "rows": len(turn.step.rows)}
    return {"name": "plan", "ph": "C", "pid": 1, "ts": round(turn.settled * 1e6, 1), "args": args}


def _name(thread: int, name: str) -> Event:
    return {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
