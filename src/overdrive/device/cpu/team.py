"""The threads that run the kernels: the calling one and a few workers, never more than asked for.

Starting a kernel takes a microsecond or two (numba's portable pool takes 90, and a step has hundreds of kernels), and
nothing waits for a worker that has no core to run on (OpenMP does, for a whole time slice). See team_kernels.py.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numba.core.ccallback import CFunc
from torch import Tensor

from overdrive.device.cpu.lanes import check_machine
from overdrive.device.cpu.team_kernels import SHARED_BYTES, runner, stopper, worker


class Native:
    """A compiled kernel as a Python callable of integers; the interpreter lock is free while it runs."""

    def __init__(self, kernel: CFunc) -> None:
        self._kernel = kernel  # owns the code
        self.address = kernel.address
        self._function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(kernel._sig.args))(kernel.address)

    def __call__(self, *arguments: int) -> None:
        self._function(*arguments)


class Recorder(Protocol):
    """Follows what a team runs, so that it can be run again without Python (see recording.py)."""

    def note(self, kernel: int, arguments: bytes, together: bool) -> None:
        """A kernel is about to run with this argument block, on the whole team or alone."""
        ...

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Memory for a result, the same whenever the recording is run again."""
        ...


class Team:
    """Runs kernels `void kernel(int64 arguments, int64 part)` on `threads` threads; part 0 is the caller's.

    A kernel divides its work by the counter in the first word of its arguments. One thread launches, one kernel runs at
    a time. The workers leave when the team is collected.
    """

    def __init__(self, threads: int) -> None:
        """Raises OverdriveError on a processor that the kernels cannot run on."""
        check_machine()
        self.threads = threads
        self._shared = np.zeros(SHARED_BYTES // 8, dtype=np.int64)
        self._address = self._shared.ctypes.data
        self._run = Native(runner())
        self._scratches = [np.zeros(64, dtype=np.uint8)]
        self._recorder: Recorder | None = None
        serve = Native(worker())
        for part in range(1, threads):
            arguments = (serve, self._shared, part)
            threading.Thread(target=_work, args=arguments, name=f"overdrive-kernel-{part}", daemon=True).start()
        weakref.finalize(self, _stop, Native(stopper()), self._shared)

    def run(self, program: int, count: int) -> None:
        """Run `count` kernels, one after the other; see `team_kernels.runner` for the words at `program`."""
        self._run(self._address, program, count)

    def note(self, kernel: int, arguments: ctypes.Array[ctypes.c_char], together: bool) -> None:
        """Tell the recorder, if there is one."""
        if self._recorder is not None:
            self._recorder.note(kernel, arguments.raw, together)

    def empty(self, *shape: int) -> Tensor:
        """Memory for a kernel's float32 result."""
        return torch.empty(shape) if self._recorder is None else self._recorder.empty(shape)

    @contextmanager
    def recorded(self, recorder: Recorder) -> Iterator[None]:
        """Everything the team runs inside is noted by `recorder`, and results lie in its memory."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None

    def scratch(self, size: int) -> int:
        """Address of at least `size` bytes, aligned to 64. What it holds is lost with the next call of `scratch`.

        The memory itself stays as long as the team, because recordings may name it; its sizes double, so the old pieces
        are smaller together than the newest.
        """
        if len(self._scratches[-1]) < size + 64:
            self._scratches.append(np.zeros(max(size + 64, 2 * len(self._scratches[-1])), dtype=np.uint8))
        return -(-self._scratches[-1].ctypes.data // 64) * 64


def _work(serve: Native, shared: np.ndarray, part: int) -> None:
    serve(shared.ctypes.data, part)


def _stop(stop: Native, shared: np.ndarray) -> None:
    stop(shared.ctypes.data)


class Call:
    """A kernel bound to a team and an argument block: a counter that starts at zero, then the caller's values.

    layout: struct codes of the values, eight bytes each: "q" for integers and addresses, "d" for floats.
    """

    def __init__(self, team: Team, kernel: CFunc, layout: str) -> None:
        self._team = team
        self._kernel = Native(kernel)
        self._struct = struct.Struct("q" + layout)
        self._block = ctypes.create_string_buffer(self._struct.size)
        self._arguments = ctypes.addressof(self._block)
        self._words = (ctypes.c_int64 * 3)(self._kernel.address, self._arguments, 1)
        self._program = ctypes.addressof(self._words)

    def __call__(self, *values: int | float) -> None:
        """Run on the whole team."""
        self._struct.pack_into(self._block, 0, 0, *values)
        self._team.note(self._kernel.address, self._block, True)
        self._team.run(self._program, 1)

    def alone(self, *values: int | float) -> None:
        """Run on the calling thread: for work smaller than waking the others."""
        self._struct.pack_into(self._block, 0, 0, *values)
        self._team.note(self._kernel.address, self._block, False)
        self._kernel(self._arguments, 0)
