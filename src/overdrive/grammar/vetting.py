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

from overdrive.grammar.base import Compiler, NotNow, Vetted
from overdrive.grammar.levels import LEVELS, Level
from overdrive.grammar.vetter import LOST

MAIN = "import sys; sys.path[:] = {!r}; from overdrive.grammar.vetter import serve; serve({})"
"""Not by `multiprocessing`, which would read the program's main module a second time: that may be anybody's script."""

END_SECONDS = 5.0

STUCK_SECONDS = 60.0
"""Beyond a grammar's time, without a word on anything: the process is not slow, or still starting. It was stopped."""

LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A grammar without a verdict. until: by time.monotonic."""

    verdict: Future[Vetted]
    until: float


class Vetting:
    """Owns the process. `__call__` may be called by any thread."""

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
        self._living: list[tuple[subprocess.Popen[bytes], Connection]] = []  # none, or the one

    def __call__(self, kind: str, source: str, seconds: float) -> Future[Vetted]:
        """Have a grammar tried within `seconds`. Ends with BadRequest where it cannot be used, NotNow by no fault of
        its own. Returns at once."""
        future: Future[Vetted] = Future()
        with self._lock:
            self._asks += 1
            number = self._asks
            self._asked[number] = _Asked(future, time.monotonic() + seconds)
        self._sender.submit(self._send, number, (kind, source, seconds))
        return future

    @property
    def pid(self) -> int:
        """Of the process; 0 where none runs."""
        with self._lock:
            return self._living[0][0].pid if self._living else 0

    def _send(self, number: int, asked: tuple[str, str, float]) -> None:
        try:
            self._pipe().send((number, *asked))
        except OSError as error:
            self._settle(number, NotNow(f"the grammar could not be compiled: {error}"))

    def _pipe(self) -> Connection:
        """To the process that runs, or to a new one."""
        with self._lock:
            if self._living:
                return self._living[0][1]
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
        threading.Thread(target=self._read, args=(process, ours), name="vetting-reads", daemon=True).start()
        ours.send((self._make, self._levels))
        return ours

    def _read(self, process: subprocess.Popen[bytes], pipe: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                if pipe.poll(LOOK_SECONDS):
                    self._settle(*pipe.recv())
                elif self._stuck():
                    break
        with self._lock:
            self._living.clear()
            lost = list(self._asked)
        for number in lost:
            self._settle(number, NotNow(LOST))
        _end(process)
        pipe.close()

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
