"""The engine's end of the vetter: starts its process when the first grammar comes, and ends it.

Knows how grammars are asked about, not how they are tried (`vetter.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from overdrive.errors import system_reason
from overdrive.grammar.base import Compiler, NotNow, Vetted
from overdrive.grammar.levels import LEVELS, Level
from overdrive.grammar.vetter import LOST

MAIN = "import sys; sys.path[:] = {!r}; from overdrive.grammar.vetter import serve; serve({})"
"""Not by `multiprocessing`, which would read the program's main module a second time: that may be anybody's script."""

END_SECONDS = 5.0

STUCK_SECONDS = 60.0
"""Beyond a grammar's time, without a word on anything: the process is not slow, or still starting. It was stopped."""

LOOK_SECONDS = 1.0


MOST_TRIES = 2
"""Of one grammar, each by another process."""

Living = tuple[subprocess.Popen[bytes], Connection]


@dataclass(slots=True)
class _Asked:
    """A grammar without a verdict.

    until: by time.monotonic. pipe: to the process that has it; None before the first. tries: processes that have had
    it. begun: whether one of them had begun with it.
    """

    kind: str
    source: str
    until: float
    verdict: Future[Vetted]
    pipe: Connection | None = None
    tries: int = 0
    begun: bool = False


class Vetting:
    """Owns the process. `__call__` may be called by any thread.

    Where the process dies, what it had is tried once more by the next, those last that it had begun with: one of them
    may be why.
    """

    def __init__(
        self, make: Callable[[], Compiler], levels: Sequence[Level] = LEVELS, patience: float = STUCK_SECONDS
    ) -> None:
        """make: makes the compiler over there, so it must be something that can be pickled. patience: seconds that a
        verdict may be late before the process is ended, and followed by another."""
        self._make = make
        self._levels = levels
        self._patience = patience
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="vetting")
        self._lock = threading.Lock()
        self._asked: dict[int, _Asked] = {}
        self._asks = 0
        self._living: list[Living] = []  # none, or the one

    def __call__(self, kind: str, source: str, seconds: float) -> Future[Vetted]:
        """Have a grammar tried within `seconds`. Ends with BadRequest where it cannot be used, NotNow by no fault of
        its own. Returns at once."""
        future: Future[Vetted] = Future()
        with self._lock:
            self._asks += 1
            number = self._asks
            self._asked[number] = _Asked(kind, source, time.monotonic() + seconds, future)
        self._sender.submit(self._send, number)
        return future

    @property
    def pid(self) -> int:
        """Of the process; 0 where none runs."""
        with self._lock:
            return self._living[0][0].pid if self._living else 0

    def _send(self, number: int) -> None:
        """By the sender's thread alone."""
        try:
            process, pipe = self._given(number) or self._start(number)
        except OSError as error:  # the system has no process to give
            self._settle(number, NotNow(f"the grammar could not be compiled: {system_reason(error)}"))
            return
        try:
            asked = self._asked[number]
            pipe.send((number, asked.kind, asked.source, asked.until - time.monotonic()))
        except OSError:
            _end(process)  # what it had is then for `_read` to see to

    def _given(self, number: int) -> Living | None:
        """The process that lives, which has this grammar from now on."""
        with self._lock:
            for living in self._living:
                asked = self._asked[number]
                asked.pipe, asked.tries = living[1], asked.tries + 1
                return living
        return None

    def _start(self, number: int) -> Living:
        """A new process, which has this grammar."""
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN.format(sys.path, theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads would make forking unsafe
            process_group=0,  # an interrupt at the terminal is not meant for it
        )
        theirs.close()
        with self._lock:
            self._living.append((process, ours))
        self._given(number)  # before anybody reads, and might find that the process is gone
        threading.Thread(target=self._read, args=(process, ours), name="vetting-reads", daemon=True).start()
        with suppress(OSError):  # so will the grammar's sending find
            ours.send((self._make, self._levels))
        return process, ours

    def _read(self, process: subprocess.Popen[bytes], pipe: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                if pipe.poll(LOOK_SECONDS):
                    self._hear(*pipe.recv())
                elif self._stuck():
                    break
        with self._lock:
            self._living.clear()
            lost = [(asked.begun, number) for number, asked in self._asked.items() if asked.pipe is pipe]
        _end(process)
        pipe.close()
        for _, number in sorted(lost):
            self._try_again(number)

    def _hear(self, number: int, verdict: Vetted | Exception | None) -> None:
        """verdict: None says that the process begins with this grammar."""
        if verdict is not None:
            self._settle(number, verdict)
            return
        with self._lock:
            if asked := self._asked.get(number):
                asked.begun = True

    def _try_again(self, number: int) -> None:
        asked = self._asked[number]
        if asked.tries < MOST_TRIES and time.monotonic() < asked.until:
            with suppress(RuntimeError):  # all is being closed
                self._sender.submit(self._send, number)
                return
        self._settle(number, NotNow(LOST))

    def _stuck(self) -> bool:
        with self._lock:
            return any(time.monotonic() > asked.until + self._patience for asked in self._asked.values())

    def _settle(self, number: int, verdict: Vetted | Exception) -> None:
        with self._lock:
            asked = self._asked.pop(number, None)
        if asked is None:
            return
        if isinstance(verdict, Exception):
            asked.verdict.set_exception(verdict)
        else:
            asked.verdict.set_result(verdict)

    def close(self) -> None:
        """Try nothing more, and end the process and its children."""
        self._sender.shutdown(wait=False, cancel_futures=True)
        self._end_living()  # which what is being sent may wait for
        self._sender.shutdown(wait=True)
        self._end_living()  # one that was just started

    def _end_living(self) -> None:
        with self._lock:
            living = list(self._living)
        for process, _ in living:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a vetter and its children, whose group it leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
