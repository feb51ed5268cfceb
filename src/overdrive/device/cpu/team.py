"""The threads that run the kernels: the OpenMP pool that torch has loaded already, never a second one.

Two pools that spin beside each other fight for the cores, and numba's own portable pool takes 90 us to start a kernel,
seven hundred times a step. `GOMP_parallel` on torch's runtime takes one to two.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch  # noqa: F401  (loads the OpenMP runtime that is looked up below)
from numba.core.ccallback import CFunc

Launch = Callable[[int, int], None]


class Team:
    """Runs a kernel `void kernel(int64 arguments)` on `threads` threads at once.

    A kernel divides its work by the shared counters at the head of its arguments (see `Call`). One launch at a time.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._launch = _openmp(threads) or _python_threads(threads)
        self._scratch = np.zeros(0, dtype=np.uint8)

    def launch(self, kernel: int, arguments: int) -> None:
        """Run the kernel at address `kernel`; returns when every thread has left it."""
        self._launch(kernel, arguments)

    def scratch(self, size: int) -> int:
        """Address of at least `size` bytes, aligned to 64, good until the next call of `scratch`."""
        if self._scratch.size < size + 64:
            self._scratch = np.zeros(size + 64, dtype=np.uint8)
        return -(-self._scratch.ctypes.data // 64) * 64


class Call:
    """A kernel bound to a team and an argument block: two counters that start at zero, then the caller's values.

    layout: struct codes of the values, eight bytes each: "q" for integers and addresses, "d" for floats.
    """

    COUNTERS = 2

    def __init__(self, team: Team, kernel: CFunc, layout: str) -> None:
        self._team = team
        self._kernel = kernel
        self._address = kernel.address
        self._struct = struct.Struct("q" * self.COUNTERS + layout)
        self._block = ctypes.create_string_buffer(self._struct.size)
        self._arguments = ctypes.addressof(self._block)
        self._here = ctypes.CFUNCTYPE(None, ctypes.c_int64)(kernel.address)

    def __call__(self, *values: int | float) -> None:
        """Run on the whole team."""
        self._struct.pack_into(self._block, 0, 0, 0, *values)
        self._team.launch(self._address, self._arguments)

    def alone(self, *values: int | float) -> None:
        """Run on the calling thread: for work smaller than waking the others."""
        self._struct.pack_into(self._block, 0, 0, 0, *values)
        self._here(self._arguments)


def _openmp(threads: int) -> Launch | None:
    """`GOMP_parallel` of the runtime in this process (GNU's or LLVM's), or None where there is none."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # macOS and Windows builds of torch
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return lambda kernel, arguments: parallel(kernel, arguments, threads, 0)


def _python_threads(threads: int) -> Launch:
    """The same from a pool of Python threads; a foreign call releases the interpreter lock."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64)
    pool = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="overdrive-kernel")

    def launch(kernel: int, arguments: int) -> None:
        function = kind(kernel)
        others = [pool.submit(function, arguments) for _ in range(threads - 1)]
        function(arguments)
        for other in others:
            other.result()

    return launch
