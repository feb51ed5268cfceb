"""Native half of the team: how a kernel is shared out between the calling thread and the workers.

Whoever comes takes part: the caller publishes a kernel, runs it too, and waits only for workers that entered it. A
worker that the operating system has put aside is not missed, since kernels divide their work by a shared counter; on a
machine whose cores also run a server this matters more than anything else about a pool. A worker without work spins
for some ten microseconds, which spans the gap between two kernels, then parks.
"""

from __future__ import annotations

import platform
import sys

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.lanes import Builder, Value, i32, i64, integer
from overdrive.device.cpu.memory import load_int, load_ints, store_int

# Places in the shared block, in bytes; what different threads write stands in different cache lines.
GENERATION, OPEN, KERNEL, ARGUMENTS, ACTIVE, PARKED, STOP = 0, 64, 72, 80, 128, 192, 256
SHARED_BYTES = 320
SPINS = 1000

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


def _pointer(b: Builder, address: Value, kind: ir.Type = i64) -> Value:
    return b.inttoptr(address, kind.as_pointer())


def _function(b: Builder, name: str, result: ir.Type, *parameters: ir.Type, var_arg: bool = False) -> Value:
    return cgutils.get_or_insert_function(b.module, ir.FunctionType(result, parameters, var_arg), name)


@intrinsic
def read(context, address):
    """Load, in one total order with `write` and `add`."""

    def emit(context, b, signature, arguments):
        return b.load_atomic(_pointer(b, arguments[0]), "seq_cst", 8)

    return types.int64(types.int64), emit


@intrinsic
def write(context, address, value):
    """Store, in the same order."""

    def emit(context, b, signature, arguments):
        b.store_atomic(arguments[1], _pointer(b, arguments[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def add(context, address, value):
    """Add, in the same order; returns what was there."""

    def emit(context, b, signature, arguments):
        return b.atomic_rmw("add", _pointer(b, arguments[0]), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def call(context, kernel, arguments, part):
    """kernel(arguments, part)."""

    def emit(context, b, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [i64, i64])
        b.call(b.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def relax(context):
    """A moment's rest for the core's other work."""

    def emit(context, b, signature, arguments):
        if platform.machine() in ("x86_64", "AMD64"):
            b.call(_function(b, "llvm.x86.sse2.pause", ir.VoidType()), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def give_way(context):
    """Let another thread have this core."""

    def emit(context, b, signature, arguments):
        b.call(_function(b, "sched_yield", i32), [])
        return context.get_dummy_value()

    return types.void(), emit


def _futex(b: Builder, address: Value, operation: int, value: Value) -> None:
    function = _function(b, "syscall", i64, i64, var_arg=True)
    b.call(function, [integer(_FUTEX), address, integer(operation), value, integer(0), integer(0), integer(0)])


@intrinsic
def park(context, address, value):
    """Sleep while the word at `address` is `value`; may return early."""

    def emit(context, b, signature, arguments):
        if _FUTEX:
            _futex(b, arguments[0], _WAIT_PRIVATE, arguments[1])
        else:
            b.call(_function(b, "usleep", i32, i32), [ir.Constant(i32, 200)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def unpark(context, address):
    """Wake everyone parked at `address`."""

    def emit(context, b, signature, arguments):
        if _FUTEX:
            _futex(b, arguments[0], _WAKE_PRIVATE, integer(1 << 30))
        return context.get_dummy_value()

    return types.void(types.int64), emit


def worker() -> CFunc:
    """`worker(shared, part)`: takes part in every kernel until told to stop."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def serve(shared, part):
        source  # noqa: B018  (makes the source part of the cache key)
        seen, spins = 0, 0
        while read(shared + STOP) == 0:
            generation = read(shared + GENERATION)
            if generation != seen:
                seen, spins = generation, 0
                # Entering before looking: the caller closes before it looks who is inside, so one of the two sees.
                add(shared + ACTIVE, 1)
                if read(shared + OPEN) != 0:
                    call(load_int(shared + KERNEL), load_int(shared + ARGUMENTS), part)
                add(shared + ACTIVE, -1)
            elif spins < SPINS:
                spins += 1
                relax()
            else:
                add(shared + PARKED, 1)
                park(shared + GENERATION, seen)
                add(shared + PARKED, -1)

    return serve


def runner() -> CFunc:
    """`run(shared, program, count)`: `count` kernels in order, each on everyone who comes or on the caller alone.

    program: three words for each kernel: its address, that of its arguments, whose first word, the counter by which the
    work is divided, starts at zero, and whether the workers may come.
    """
    source = SOURCE

    @cfunc("void(int64, int64, int64)", cache=True, error_model="numpy")
    def run(shared, program, count):
        source  # noqa: B018
        for i in range(count):
            kernel, arguments, together = load_ints(program + 24 * i, 3)
            store_int(arguments, 0)
            if not together:
                call(kernel, arguments, 0)
                continue
            store_int(shared + KERNEL, kernel)
            store_int(shared + ARGUMENTS, arguments)
            write(shared + OPEN, 1)
            add(shared + GENERATION, 1)
            if read(shared + PARKED) != 0:
                unpark(shared + GENERATION)
            call(kernel, arguments, 0)
            write(shared + OPEN, 0)
            spins = 0
            while read(shared + ACTIVE) != 0:
                spins += 1
                if spins > SPINS:
                    give_way()
                else:
                    relax()

    return run


def stopper() -> CFunc:
    """`stop(shared)`: the workers leave."""
    source = SOURCE

    @cfunc("void(int64)", cache=True, error_model="numpy")
    def stop(shared):
        source  # noqa: B018
        write(shared + STOP, 1)
        add(shared + GENERATION, 1)
        unpark(shared + GENERATION)

    return stop
