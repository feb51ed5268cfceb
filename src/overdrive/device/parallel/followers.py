"""The leader's side of its follower processes: starting them, telling them steps, noticing when one is gone.

Knows processes and messages; what a follower does with a step is `overdrive.rank_process`. A follower never outlives
its leader: it reads a pipe that the operating system closes when the leader is gone, however it went.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from overdrive.config import EngineOptions
from overdrive.device.parallel.link import (
    End,
    Failed,
    FromFollower,
    Hello,
    LeaderEnd,
    Loaded,
    Loading,
    Open,
    Ready,
    Run,
    Start,
    encode,
    for_followers,
)
from overdrive.device.stream import Point
from overdrive.errors import OverdriveError
from overdrive.grammar.sheet import NO_MASKS, MaskSheet
from overdrive.progress import Progress
from overdrive.types import Step

if TYPE_CHECKING:
    from overdrive.loop import Flight, Runner

WORKER = "overdrive.rank_process"
POLL_SECONDS = 0.1
LOOK_SECONDS = 0.2  # between two looks at the others while one waits for the device
END_SECONDS = 3.0  # for a follower to end by itself
HEADSTART_SECONDS = 1.0  # for the reason to arrive from a process that is ending

F = TypeVar("F", bound="Flight")


class Follower:
    """One process. rank: 1 or higher. folder: private, for its socket."""

    def __init__(self, rank: int, folder: str, environment: Mapping[str, str], worker: str = WORKER) -> None:
        self.rank = rank
        address = f"ipc://{folder}/rank{rank}"
        self.link = LeaderEnd(address)
        self._said = ""
        # A session of its own: signals from a terminal are the leader's business. The pipe to stdin is never written.
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker, address, str(rank)],
            stdin=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def failure(self) -> str:
        """Why the process has ended; empty while it lives. One system call while all is well."""
        code = self._process.poll()
        if code is None:
            return ""
        while not self._said and (message := self.link.receive(0.0)) is not None:
            if isinstance(message, Failed):
                self._said = message.reason
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"rank {self.rank}: {self._said}" if self._said else f"rank {self.rank} ended unexpectedly ({how})"

    def receive(self) -> FromFollower:
        """The next message. Raises OverdriveError, naming the rank and the reason, when none will come."""
        while True:
            message = self.link.receive(POLL_SECONDS)
            if isinstance(message, Failed):
                raise OverdriveError(f"rank {self.rank}: {message.reason}")
            if message is not None:
                return message
            if self.failure:
                raise OverdriveError(self.failure)

    def end(self, deadline: float) -> None:
        """Waits until `deadline` (time.monotonic) for the process to end by itself, then kills it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.link.close()


class Followers:
    """All ranks but this one."""

    def __init__(self, count: int, environment: Mapping[str, str], worker: str = WORKER) -> None:
        """Start `count` - 1 processes. environment: what theirs has beside this one's."""
        self._folder = tempfile.TemporaryDirectory(prefix="overdrive-ranks-")
        path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._all = [
            Follower(rank, self._folder.name, {"PYTHONPATH": path, **environment}, worker) for rank in range(1, count)
        ]
        self._failure = ""

    @property
    def failure(self) -> str:
        """Why no more steps can be run, in one line; empty while they can."""
        for follower in self._all:
            self._failure = self._failure or follower.failure
        return self._failure

    def start(self, model: str, options: EngineOptions, port: int) -> None:
        """Once every process is there, let it connect to the other ranks and load its part of the model."""
        self._await(Hello)
        self._tell(encode(Start(model, options, port)))

    def await_loaded(self, progress: Progress) -> None:
        """Returns when every rank has its weights."""
        self._await(Loaded, progress)

    def open(self, n_pages: int, drafts: int, plans: tuple[int, ...]) -> None:
        """Let every rank set up its part of the KV cache and its passes."""
        self._tell(encode(Open(n_pages, drafts, plans)))

    def await_ready(self) -> None:
        """Returns when every rank can run steps."""
        self._await(Ready)

    def wait(self, point: Point) -> None:
        """Wait for a point that all ranks must reach. Raises RuntimeError when one of them is gone.

        Asks the driver without a pause, as its own waiting does: a pause would be longer than what is left of a step.
        """
        looked = time.monotonic()
        while not point.query():
            if time.monotonic() - looked > LOOK_SECONDS:
                if self.failure:
                    raise RuntimeError(self.failure)
                looked = time.monotonic()

    def lead(self, runner: Runner[F]) -> Runner[F]:
        """`runner`, whose steps the others run too."""
        return LeadingRunner(runner, self.tell, self.give_up)

    def tell(self, step: Step) -> None:
        """Have every follower launch a step."""
        self._tell(encode(Run(for_followers(step))))

    def give_up(self, reason: str) -> None:
        """Nothing can be run any more. A follower that is ending gets time to say why: its reason is the better."""
        deadline = time.monotonic() + HEADSTART_SECONDS
        while not self.failure and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._failure = self._failure or reason

    def close(self) -> None:
        """End every process."""
        self._tell(encode(End()))
        deadline = time.monotonic() + (0.0 if self._failure else END_SECONDS)
        for follower in self._all:
            follower.end(deadline)
        self._folder.cleanup()

    def _tell(self, message: bytes) -> None:
        for follower in self._all:
            follower.link.send(message)

    def _await(self, kind: type[FromFollower], progress: Progress = lambda label, done, total: None) -> None:
        for follower in self._all:
            while not isinstance(message := follower.receive(), kind):
                if isinstance(message, Loading):
                    progress(f"{message.label} of rank {follower.rank}", message.done, message.total)


class OtherRanks(Protocol):
    """What the engine asks of `Followers`; `NO_OTHERS` where one rank runs alone."""

    @property
    def failure(self) -> str: ...

    def await_loaded(self, progress: Progress) -> None: ...

    def open(self, n_pages: int, drafts: int, plans: tuple[int, ...]) -> None: ...

    def await_ready(self) -> None: ...

    def wait(self, point: Point) -> None: ...

    def lead(self, runner: Runner[F]) -> Runner[F]: ...

    def close(self) -> None: ...


class NoOtherRanks:
    """One rank runs alone: nothing to start, to tell or to wait for."""

    failure = ""

    def await_loaded(self, progress: Progress) -> None:
        """Nothing to wait for."""

    def open(self, n_pages: int, drafts: int, plans: tuple[int, ...]) -> None:
        """Nothing to set up."""

    def await_ready(self) -> None:
        """Nothing to wait for."""

    def wait(self, point: Point) -> None:
        point.synchronize()

    def lead(self, runner: Runner[F]) -> Runner[F]:
        return runner

    def close(self) -> None:
        """Nothing to end."""


NO_OTHERS = NoOtherRanks()


class LeadingRunner(Generic[F]):
    """`overdrive.loop.Runner` of rank 0: every step goes to the followers before its first launch here."""

    def __init__(self, runner: Runner[F], tell: Callable[[Step], None], give_up: Callable[[str], None]) -> None:
        self._runner = runner
        self._tell = tell
        self._give_up = give_up

    def draft(self, step: Step) -> F:
        self._tell(step)
        return self._runner.draft(step)

    def forward(self, flight: F, /) -> None:
        self._runner.forward(flight)

    def sheet(self, flight: F, /) -> MaskSheet:
        return self._runner.sheet(flight)

    def accept(self, flight: F, sheet: MaskSheet = NO_MASKS, /) -> None:
        self._runner.accept(flight, sheet)

    def absorb(self, flight: F, /) -> None:
        self._runner.absorb(flight)

    def recover(self) -> None:
        """After a failed launch the ranks are out of step: some wait for values that others will never send."""
        self._give_up("a launch failed on rank 0, and the others cannot go on without it")
