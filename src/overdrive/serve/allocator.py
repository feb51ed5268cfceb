"""How the HTTP process takes memory from the system, where the C library is glibc: so that none of it is lost in holes.

The event loop reads sockets into buffers of 256 KiB and cuts each to the few bytes that came. By itself glibc soon
takes such buffers from its heap, where each cut leaves a hole behind a small piece, and it gives every thread a heap
of its own. Resident memory then grows for hours while nothing is held: `used` of mallinfo2 stands still, `free` grows.
"""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h.
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

LARGE = 128 << 10  # bytes; glibc begins with this and raises it by itself until it is told


def keep_whole() -> None:
    """Large pieces come from the system and go back to it, small ones of all threads lie in one heap.

    Call it before there are threads. Does nothing where the C library has no such options.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_ARENA_MAX, 1)
    mallopt(M_MMAP_THRESHOLD, LARGE)
