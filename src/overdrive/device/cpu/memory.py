"""Raw memory inside numba kernels: loads, stores and a shared counter at integer addresses.

Kernels take one address of 64-bit arguments instead of arrays: passing a dozen arrays costs more than a small kernel.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from overdrive.device.cpu.lanes import at, f32, i32, i64, load, store


def _loader(kind: types.Type, native: ir.Type, align: int):
    def typed(context, address):
        def emit(context, b, signature, arguments):
            return load(b, arguments[0], native, align)

        return kind(types.int64), emit

    return typed


load_int = intrinsic(_loader(types.int64, i64, 8))
load_int32 = intrinsic(_loader(types.int32, i32, 4))
load_double = intrinsic(_loader(types.float64, ir.DoubleType(), 8))
load_float = intrinsic(_loader(types.float32, f32, 4))


@intrinsic(prefer_literal=True)
def load_ints(context, address, count):
    """`count` consecutive 64-bit integers as a tuple."""
    kind = types.UniTuple(types.int64, count.literal_value)

    def emit(context, b, signature, arguments):
        values = [load(b, at(b, arguments[0], 8 * k), i64, 8) for k in range(kind.count)]
        return context.make_tuple(b, kind, values)

    return kind(types.int64, count), emit


@intrinsic
def store_float(context, address, value):
    """Write a float32."""

    def emit(context, b, signature, arguments):
        store(b, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), emit


@intrinsic
def store_int(context, address, value):
    """Write a 64-bit integer."""

    def emit(context, b, signature, arguments):
        store(b, arguments[1], arguments[0], 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def take(context, address):
    """Add one to the 64-bit counter at `address`, for all threads at once, and return what it was."""

    def emit(context, b, signature, arguments):
        return b.atomic_rmw("add", b.inttoptr(arguments[0], i64.as_pointer()), ir.Constant(i64, 1), "monotonic")

    return types.int64(types.int64), emit
