"""The engine process: started by the HTTP process, and never left behind by it.

Each notices the other's death through the operating system, not through the link: the child waits for its parent's
sentinel, the parent for the child's; on Linux the system itself kills the child too, which may be stuck. Signals are
the parent's business: a Ctrl-C or a SIGTERM sent to the whole group must not end the engine while answers are still
being finished.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import wait

from overdrive.config import EngineOptions

KILL_SECONDS = 10.0
PR_SET_PDEATHSIG = 1  # of Linux' prctl.h

Target = Callable[[str, EngineOptions, str], None]  # model, options, address of the link


class EngineProcess:
    """A child process that runs `target`; use it as a context manager, which ends it whatever happens."""

    def __init__(self, target: Target, model: str, options: EngineOptions, address: str) -> None:
        context = mp.get_context("spawn")  # a fresh interpreter: nothing of the HTTP process is inherited
        # Started by the main thread, with whose end the system takes the parent to have died.
        self._process = context.Process(
            target=_child, args=(target, model, options, address), name="overdrive-engine", daemon=True
        )

    def __enter__(self) -> EngineProcess:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, so that it holds from the first moment on
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, previous)
        return self

    def __exit__(self, *_: object) -> None:
        self.end(grace=0.0)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid or 0

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process has ended."""
        return self._process.sentinel

    @property
    def exit_word(self) -> str:
        """How the process ended, for people."""
        self._process.join(1.0)
        code = self._process.exitcode or 0
        if code >= 0:
            return f"exit code {code}"
        known = {one.value: one.name for one in signal.Signals}  # most real-time signals have no name
        return f"signal {known.get(-code, -code)}"

    def end(self, grace: float) -> None:
        """Waits `grace` seconds for the process to end by itself, then kills it.

        Returns although it still exists where the system itself cannot end it, because a driver does not let it go.
        """
        self._process.join(grace)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(KILL_SECONDS)


def _child(target: Target, model: str, options: EngineOptions, address: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    target(model, options, address)


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        sys.stderr.flush()
        os._exit(1)  # nobody is left to clean up for, and the main thread may be deep in arithmetic


def run_engine(model: str, options: EngineOptions, address: str) -> None:
    """The real engine; imported in the child only, so that the HTTP process never loads torch."""
    from overdrive.engine_process import run_engine as run

    run(model, options, address)
