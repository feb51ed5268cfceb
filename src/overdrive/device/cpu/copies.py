"""A native kernel that copies blocks of memory: a batch to where recorded passes read it, in one call."""

from __future__ import annotations

from numba import cfunc, types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.lanes import i8
from overdrive.device.cpu.memory import load_int, load_ints

WORDS = 6  # of a block: source, its stride, target, its stride, rows, bytes of a row


@intrinsic
def copy_bytes(context, source, target, count):
    """count bytes from one place to another."""

    def emit(context, b, signature, arguments):
        source, target, count = arguments
        cgutils.raw_memcpy(b, *(b.inttoptr(place, i8.as_pointer()) for place in (target, source)), count, 1)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


def copy_blocks() -> CFunc:
    """Kernel: the number of blocks, then WORDS of each. Run alone; it does not share its work."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        for i in range(load_int(a + 8)):
            place, stride, target, target_stride, rows, count = load_ints(a + 16 + 48 * i, 6)
            for row in range(rows):
                copy_bytes(place + row * stride, target + row * target_stride, count)

    return kernel
