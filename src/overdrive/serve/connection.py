"""One client's connection, with an end to everything that it may take long over.

A client that sends no request, or one line of it an hour, is closed; so is one that does not read its answer. What
such a client asked is then aborted like that of any client that leaves. Knows HTTP's bytes alone.
"""

from __future__ import annotations

import asyncio
import resource
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0  # from the connection, or the answer before, to a request's whole head
STUCK_SECONDS = 30.0  # in which some of a full buffer must be read
BUFFER_BYTES = 64 << 10  # written and not yet taken by the system; beyond it the stream waits
MOST_FILES = 65536
PROBE_SECONDS, PROBE_PAUSE, PROBES = 30, 10, 3  # of silence before the system asks whether a peer is still there


class Connection(H11Protocol):
    """uvicorn's connection, and two alarms: for the head of a request, and for a client that does not read."""

    head_seconds = HEAD_SECONDS
    stuck_seconds = STUCK_SECONDS
    _head: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(BUFFER_BYTES)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for alarm in (self._head, self._stuck):
            if alarm is not None:
                alarm.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        super().data_received(data)
        if self.cycle is not cycle and self._head is not None:
            self._head.cancel()

    def on_response_complete(self) -> None:
        cycle = self.cycle
        self._await_head()
        super().on_response_complete()
        if self.cycle is not cycle and self._head is not None:  # the next request had been sent already
            self._head.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self.stuck_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _await_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head = self.loop.call_later(self.head_seconds, self.transport.abort)


def probe_silent_peers(listener: socket.socket) -> None:
    """Connections that `listener` accepts are given up when their machine is gone without a word."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_SECONDS),
        ("TCP_KEEPINTVL", PROBE_PAUSE),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", 1000 * (PROBE_SECONDS + PROBE_PAUSE * PROBES)),  # the same for what was sent in vain
    ):
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def raise_file_limit() -> None:
    """Room for `MOST_FILES` connections, or as many as this process may have, where the shell's limit is lower."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(MOST_FILES, most)
    if 0 <= now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
