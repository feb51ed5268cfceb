"""The server's log: one line per event, as text or as JSON, on stderr. No request's content is ever part of it.

    2026-01-31T12:00:00.123Z info request id=5f0c.. endpoint=/v1/completions status=200 ..
    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "event": "request", "id": "5f0c..", ...}

Lines are written by a thread of their own, so that a terminal or a pipe that nobody reads cannot hold the server; what
it does not take is dropped, and counted.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from starlette.types import Scope

from overdrive.config import LogFormat, LogLevel
from overdrive.serve.guards import route
from overdrive.serve.record import RequestRecord

log = logging.getLogger("overdrive.serve")
QUIET = frozenset({"/", "/live", "/health", "/ready", "/metrics"})  # asked for again and again, and by nobody in person
GONE = "socket.send() raised exception."
"""What asyncio says of every further write to a client that has gone: whoever resets many connections writes the log.
The request's own line tells how it ended."""
PLAIN = re.compile(r"[\w.:/+@<>-]*(?: < [\w.:/+@<>-]*)*")
MOST_LINES = 10_000  # that wait to be written
END_SECONDS = 1.0  # for the last lines to be written


def log_request(scope: Scope, status: int, record: RequestRecord) -> None:
    """One line for a request that has ended."""
    where = route(scope)
    fields: dict[str, Any] = {
        "id": record.id,
        "endpoint": where,
        "method": scope["method"] if where != "other" else "",
        "status": status,
        "seconds": round(time.monotonic() - record.started, 4),
        "code": record.fault,
    }
    if record.ended:
        fields |= {
            "stream": record.streamed,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.output_tokens,
            "queue_seconds": round(record.queued, 4),
            "first_token_seconds": round(record.first - record.started, 4) if record.first else "",
            "finish": "+".join(f"{name}:{count}" if count > 1 else name for name, count in record.finishes.items()),
        }
    level = logging.DEBUG if where in QUIET and status in (200, 503) else logging.INFO
    log.log(level, "request", extra={"fields": {name: value for name, value in fields.items() if value != ""}})


def log_failure(record: RequestRecord, error: Exception) -> None:
    """Where a request failed for a fault of the server's, without the error's words, which may quote the request."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames[-8:]))
    fields = {"id": record.id, "error": type(error).__name__, "at": places}
    log.error("request failed", extra={"fields": fields})


class TextForm(logging.Formatter):
    """A line for people."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={_word(value)}" for name, value in _fields(record).items())
        return f"{_time(record)} {record.levelname.lower()} {record.getMessage()}{pairs}{_trace(record)}"


class JsonForm(logging.Formatter):
    """A line for machines."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        trace = _trace(record)
        return json.dumps(head | _fields(record) | ({"trace": trace} if trace else {}), default=str)


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _word(value: Any) -> str:
    """Nothing that comes from outside can look like a field or a line of its own."""
    return str(value) if PLAIN.fullmatch(str(value)) else json.dumps(str(value))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _trace(record: logging.LogRecord) -> str:
    """Of errors outside any request, as libraries log them."""
    return "\n" + logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


class Lines(logging.Handler):
    """Hands lines to a thread that writes them."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._waiting: queue.Queue[str] = queue.Queue(MOST_LINES)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1

    def end(self) -> None:
        """Writes what waits, for a second at most: whoever reads may be gone."""
        try:
            self._waiting.put("", timeout=END_SECONDS)
        except queue.Full:
            return
        self._thread.join(END_SECONDS)

    def _write(self) -> None:
        while line := self._waiting.get():
            if self.dropped:
                line, self.dropped = f"{line}\n(lines were dropped: {self.dropped})", 0
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                self.dropped += 1


@contextmanager
def logs(form: LogFormat, level: LogLevel, stream: TextIO = sys.stderr) -> Iterator[None]:
    """Everything that is logged meanwhile goes to `stream`; other libraries' lines from warnings on."""
    handler = Lines(stream)
    handler.addFilter(lambda record: record.msg != GONE)
    handler.setFormatter(JsonForm() if form == "json" else TextForm())
    root = logging.getLogger()
    ours = logging.getLogger("overdrive")
    root.addHandler(handler)
    ours.setLevel(level.upper())
    handler.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.end()
