"""Kernels compiled before anybody needs them, several at once: a launch would compile its own while all else waits."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from overdrive.device.cuda.attention import CudaAttention
from overdrive.machine import usable_cores

MOST_THREADS = 8
"""A fifth of the work is the interpreter's, which one thread has at a time."""


def compile_ahead(passes: Iterable[CudaAttention]) -> None:
    """Compile the kernels of these passes that are not compiled yet.

    Attention alone: its kernels come in more forms than all others together, and take two thirds of the time.
    """
    import triton

    threads = min(MOST_THREADS, usable_cores())
    with ThreadPoolExecutor(threads, "compiling") as pool, triton.AsyncCompileMode(pool):
        for one in passes:
            one.compile()
