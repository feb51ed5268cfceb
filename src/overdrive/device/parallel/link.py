"""What the leader's host and a follower's host tell each other: the messages, and a socket for each end.

    leader                               follower
           <-------------------- Hello --
           -- Start -------------------->     connects to the other ranks
           <----- Loading ..., Loaded ---     holds its part of the model
           -- Open --------------------->
           <-------------------- Ready --     has its part of the KV cache
           -- Run, Run, ... End -------->
           <------------------- Failed --     instead of any of the above; the last word

Sending queues a message and returns: zmq's own thread delivers it, so a slow follower never delays the leader.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace

import msgspec
import zmq

from overdrive.config import EngineOptions
from overdrive.types import Admission, SamplingParams, Step

STDIN = 0
LINGER_MS = 1000  # how long a closing end may still deliver what it has sent


class Start(msgspec.Struct, tag=True, frozen=True):
    """What to load, and where ranks find each other. port: of the leader's store, on the loopback interface."""

    model: str
    options: EngineOptions
    port: int


class Open(msgspec.Struct, tag=True, frozen=True):
    """Set up pages, slots and passes. As `overdrive.device.base.Parts`."""

    n_pages: int
    drafts: int
    plans: tuple[int, ...]


class Run(msgspec.Struct, tag=True, frozen=True):
    """Launch a step."""

    step: Step


class End(msgspec.Struct, tag=True, frozen=True):
    """Nothing follows."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """The process is there."""


class Loading(msgspec.Struct, tag=True, frozen=True):
    """As `overdrive.progress.Progress`."""

    label: str
    done: int
    total: int


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The rank's weights are on its device."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Steps can be run."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The process ends, for a reason in one line."""

    reason: str


ToFollower = Start | Open | Run | End
FromFollower = Hello | Loading | Loaded | Ready | Failed

_ENCODER = msgspec.msgpack.Encoder()


def for_followers(step: Step) -> Step:
    """The step without the rules by which only the leader draws. Seeds stay, as far as anybody reads them: 64 bits."""
    if not step.admissions:
        return step

    def unruled(admission: Admission) -> Admission:
        return replace(admission, params=SamplingParams(max_tokens=1, seed=admission.params.seed % (1 << 64)))

    return replace(step, admissions=tuple(map(unruled, step.admissions)))


def encode(message: ToFollower) -> bytes:
    """A message as it crosses the link, for any number of followers."""
    return _ENCODER.encode(message)


class _End:
    """One end of the link."""

    def __init__(self, address: str, binds: bool, incoming: object) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set(zmq.LINGER, LINGER_MS)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        if binds:
            self._socket.bind(address)
        else:
            self._socket.connect(address)
        self._decoder: msgspec.msgpack.Decoder = msgspec.msgpack.Decoder(incoming)

    def close(self) -> None:
        """Deliver what was sent, waiting a second at most, and let go of the socket."""
        self._socket.close()
        self._context.term()


class LeaderEnd(_End):
    """The leader's end towards one follower. address: "ipc://...", which is created."""

    def __init__(self, address: str) -> None:
        super().__init__(address, True, FromFollower)

    def send(self, encoded: bytes) -> None:
        """Queue what `encode` made of a message; never blocks. It is lost where the follower is gone."""
        with contextlib.suppress(zmq.Again):  # there is no high-water mark: only an end that nobody is at refuses
            self._socket.send(encoded, zmq.NOBLOCK)

    def receive(self, seconds: float) -> FromFollower | None:
        """The next message, or None when none has come within that time."""
        if not self._socket.poll(round(1000 * seconds)):
            return None
        return self._decoder.decode(self._socket.recv())


class FollowerEnd(_End):
    """A follower's end."""

    def __init__(self, address: str) -> None:
        super().__init__(address, False, ToFollower)

    def send(self, message: FromFollower) -> None:
        self._socket.send(_ENCODER.encode(message))

    def receive(self) -> ToFollower:
        """The next message, however long it takes."""
        return self._decoder.decode(self._socket.recv())


def end_with_leader() -> None:
    """From now on this process ends when its leader does, whatever its other threads are waiting for."""

    def watch() -> None:
        os.read(STDIN, 1)  # the pipe says nothing; it is closed with the leader's process
        os._exit(1)

    threading.Thread(target=watch, name="leader-watch", daemon=True).start()
