"""A kernel that writes where nothing is: what it does to a device lasts until the process ends."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def stray(pointer, distance):
    tl.store(pointer + distance, 1.0)
