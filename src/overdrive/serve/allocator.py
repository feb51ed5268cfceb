"""How the HTTP process takes memory from the system: all its threads from one place, where the C library is glibc.

By itself glibc gives every thread that allocates an arena of its own. What a worker thread allocates and the event loop
frees leaves holes in it that nobody else fills: resident memory then grows with every thread that a pool adds, for
hours, while nothing is held. One arena costs nothing here, as the interpreter runs one thread at a time.
"""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8  # of glibc's malloc.h


def share_arena() -> None:
    """Call it before there are threads. Does nothing where the C library knows no arenas."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_ARENA_MAX, 1)
