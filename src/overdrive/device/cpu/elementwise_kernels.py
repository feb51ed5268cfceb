"""Native kernels of the elementwise operations: norms, rotary positions, the gated activation. One row, one result."""

from __future__ import annotations

from collections.abc import Callable

from numba import cfunc, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.lanes import (
    LANES,
    Builder,
    Value,
    across,
    at,
    broadcast,
    exponential,
    f32,
    fma,
    i64,
    integer,
    load_lanes,
    load_some,
    loop,
    maximum,
    splat,
    square_root,
    store,
    store_some,
)
from overdrive.device.cpu.memory import load_double, load_int, load_ints, take

ROWS = 4  # rows of one task

Read = Callable[[Value], Value]
Write = Callable[[Value, Value], None]


def _along(
    b: Builder, width: Value, carried: list[Value], body: Callable[[Read, Write, list[Value]], list[Value]]
) -> list[Value]:
    """`body(read, write, carried)` for each 16 elements of a row, then for what is left, zeros beyond it.

    read(row) and write(vector, row) act at the place of these elements in the row at some address.
    """
    rest = b.srem(width, integer(LANES))
    whole = b.sdiv(width, integer(LANES))

    def piece(index: Value, values: list[Value]) -> list[Value]:
        offset = b.mul(index, integer(4 * LANES))
        return body(
            lambda row: load_lanes(b, at(b, row, offset)), lambda v, row: store(b, v, at(b, row, offset)), values
        )

    def tail(_: Value, values: list[Value]) -> list[Value]:
        offset = b.mul(whole, integer(4 * LANES))
        return body(
            lambda row: load_some(b, at(b, row, offset), rest),
            lambda v, row: store_some(b, v, at(b, row, offset), rest),
            values,
        )

    values = loop(b, whole, carried, piece)
    return loop(b, b.zext(b.icmp_signed(">", rest, integer(0)), i64), values, tail)


@intrinsic
def add_row(context, residual, x, width):
    """residual += x."""

    def emit(context, b, signature, arguments):
        residual, x, width = arguments

        def body(read: Read, write: Write, _: list[Value]) -> list[Value]:
            write(b.fadd(read(residual), read(x)), residual)
            return []

        _along(b, width, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


@intrinsic
def copy_row(context, x, out, width):
    """out = x."""

    def emit(context, b, signature, arguments):
        x, out, width = arguments

        def body(read: Read, write: Write, _: list[Value]) -> list[Value]:
            write(read(x), out)
            return []

        _along(b, width, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


@intrinsic
def norm_row(context, x, weight, out, width, eps):
    """out = x / sqrt(mean(x^2) + eps) * weight."""

    def emit(context, b, signature, arguments):
        x, weight, out, width, eps = arguments

        def square(read: Read, write: Write, sums: list[Value]) -> list[Value]:
            value = read(x)
            return [fma(b, value, value, sums[0])]

        squares = across(b, _along(b, width, [splat(0.0)], square)[0], b.fadd)
        mean = b.fdiv(squares, broadcast(b, b.sitofp(width, f32)))
        root = square_root(b, b.fadd(mean, broadcast(b, eps)))
        factor = b.fdiv(splat(1.0), root)

        def scale(read: Read, write: Write, _: list[Value]) -> list[Value]:
            write(b.fmul(b.fmul(read(x), factor), read(weight)), out)
            return []

        _along(b, width, [], scale)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32), emit


@intrinsic
def rotate_row(context, x, cos, sin, half):
    """(first, second) = (first cos - second sin, second cos + first sin) for the halves of one head."""

    def emit(context, b, signature, arguments):
        first, cos, sin, half = arguments
        second = at(b, first, b.mul(half, integer(4)))

        def body(read: Read, write: Write, _: list[Value]) -> list[Value]:
            x, y, c, s = read(first), read(second), read(cos), read(sin)
            write(b.fsub(b.fmul(x, c), b.fmul(y, s)), first)
            write(b.fadd(b.fmul(y, c), b.fmul(x, s)), second)
            return []

        _along(b, half, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@intrinsic
def gate_row(context, gate, up, out, width):
    """out = gate / (1 + e^-gate) * up."""

    def emit(context, b, signature, arguments):
        gate, up, out, width = arguments

        def body(read: Read, write: Write, _: list[Value]) -> list[Value]:
            value = maximum(b, splat(-87.0), read(gate))  # below, the result is 0 to within 1e-35
            below = b.fadd(exponential(b, b.fneg(value)), splat(1.0))
            write(b.fmul(b.fdiv(value, below), read(up)), out)
            return []

        _along(b, width, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


def copy_kernel() -> CFunc:
    """Rows to another place."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        x, x_stride, rows, out, out_stride, width = load_ints(a + 8, 6)
        task = take(a)
        while task * ROWS < rows:
            for row in range(task * ROWS, min(rows, task * ROWS + ROWS)):
                copy_row(x + row * x_stride, out + row * out_stride, width)
            task = take(a)

    return kernel


def embed_kernel() -> CFunc:
    """Rows of a table by their numbers."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        ids, tokens, table, out, out_stride, width = load_ints(a + 8, 6)
        task = take(a)
        while task * ROWS < tokens:
            for t in range(task * ROWS, min(tokens, task * ROWS + ROWS)):
                copy_row(table + 4 * width * load_int(ids + 8 * t), out + t * out_stride, width)
            task = take(a)

    return kernel


def norm_kernel() -> CFunc:
    """Norms of `outer` times `inner` vectors, adding to the residual before when there is one (inner is then 1)."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        x, outer, inner, x_stride, inner_stride, residual, r_stride, weight, out, o_stride, width = load_ints(a + 8, 11)
        eps = types.float32(load_double(a + 96))
        task = take(a)
        while task * ROWS < outer:
            for row in range(task * ROWS, min(outer, task * ROWS + ROWS)):
                for i in range(inner):
                    source_row = x + row * x_stride + i * inner_stride
                    if residual:
                        add_row(residual + row * r_stride, source_row, width)
                        source_row = residual + row * r_stride
                    norm_row(source_row, weight, out + row * o_stride + 4 * i * width, width, eps)
            task = take(a)

    return kernel


def rope_kernel() -> CFunc:
    """Rotates the heads of q and k in place."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        q, q_stride, q_heads, k, k_stride, k_heads, tokens, positions, cos, sin, half = load_ints(a + 8, 11)
        task = take(a)
        while task * ROWS < tokens:
            for t in range(task * ROWS, min(tokens, task * ROWS + ROWS)):
                angle = 4 * half * load_int(positions + 8 * t)
                for head in range(q_heads):
                    rotate_row(q + t * q_stride + 8 * half * head, cos + angle, sin + angle, half)
                for head in range(k_heads):
                    rotate_row(k + t * k_stride + 8 * half * head, cos + angle, sin + angle, half)
            task = take(a)

    return kernel


def gate_kernel() -> CFunc:
    """silu(gate) * up over rows of (gate, up)."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        x, x_stride, out, rows, width = load_ints(a + 8, 5)
        task = take(a)
        while task * ROWS < rows:
            for row in range(task * ROWS, min(rows, task * ROWS + ROWS)):
                gate = x + row * x_stride
                gate_row(gate, gate + 4 * width, out + 4 * row * width, width)
            task = take(a)

    return kernel
