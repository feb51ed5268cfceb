"""Sixteen float32 lanes: the building blocks from which the CPU kernels write their LLVM IR.

The compiler may never choose an order of summation here. Every value is an explicit `<16 x float>` (one AVX-512
register, two of AVX2, four of NEON), every multiply-add an explicit `llvm.fma`, so a result depends on the arithmetic
written down and not on the vectoriser, the tile size or the machine's registers.

Knows registers and addresses; knows nothing of weights, pages or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llvmlite import ir
from numba.core import cgutils
from numba.core.registry import cpu_target

from overdrive.errors import OverdriveError

LANES = 16

i8, i16, i32, i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
half, f32 = ir.HalfType(), ir.FloatType()
f32x16 = ir.VectorType(f32, LANES)
i32x16 = ir.VectorType(i32, LANES)

Value: TypeAlias = ir.Value
Builder: TypeAlias = ir.IRBuilder


def check_machine() -> None:
    """Raises OverdriveError where a multiply-add or a half-precision number would have to be emulated."""
    machine, _, features = cpu_target.target_context.codegen().magic_tuple()
    if machine.startswith("x86_64") and not {"+fma", "+f16c"} <= set(features.split(",")):
        raise OverdriveError("the CPU kernels need a processor with FMA and F16C instructions (made since 2013)")


def accumulators() -> int:
    """How many `<16 x float>` sums the machine that numba compiles for holds in registers beside their operands."""
    features = cpu_target.target_context.codegen().magic_tuple()[2]
    if "+avx512f" in features:
        return 24  # of 32 registers of 512 bits
    return 6  # of 16 registers of 256 bits, or of 32 of 128: two or four registers each


def byte_dots() -> bool:
    """Whether the machine that numba compiles for multiplies bytes and adds up the products (AVX-512 VNNI)."""
    features = set(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
    return {"+avx512f", "+avx512bw", "+avx512vnni"} <= features


def integer(value: int) -> Value:
    return ir.Constant(i64, value)


def splat(value: float) -> Value:
    """A constant in every lane."""
    return ir.Constant(f32x16, [value] * LANES)


def splat_int(value: int) -> Value:
    return ir.Constant(i32x16, [value] * LANES)


def at(b: Builder, address: Value, offset: Value | int) -> Value:
    """`address + offset`, both in bytes."""
    offset = integer(offset) if isinstance(offset, int) else offset
    return b.add(address, offset)


def load(b: Builder, address: Value, kind: ir.Type, align: int = 1) -> Value:
    """Load a scalar or vector of type `kind`; unaligned unless said otherwise."""
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def load_lanes(b: Builder, address: Value, element: ir.Type = f32) -> Value:
    """Load 16 consecutive elements."""
    return load(b, address, ir.VectorType(element, LANES), align=1 if element in (i8,) else 2 if element == half else 4)


def store(b: Builder, value: Value, address: Value, align: int = 4) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = align


def prefetch(b: Builder, address: Value) -> None:
    """Ask for the cache line at `address`; any address will do."""
    pointer = b.inttoptr(address, i8.as_pointer())
    words = [ir.Constant(i32, word) for word in (0, 2, 1)]  # to be read, into the second level, data
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[i32] * 3])
    b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0"), [pointer, *words])


def broadcast(b: Builder, scalar: Value) -> Value:
    """One scalar in every lane."""
    kind = ir.VectorType(scalar.type, LANES)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(i32, 0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(i32x16, [0] * LANES))


def broadcast_load(b: Builder, address: Value, kind: ir.Type = f32) -> Value:
    """The float32 (or int32) at `address` in every lane."""
    return broadcast(b, load(b, address, kind, align=4))


def _vector_call(b: Builder, name: str, *operands: Value) -> Value:
    kind = operands[0].type
    suffix = f"v{LANES}{'f32' if kind.element == f32 else 'i32'}"
    function = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(kind, [kind] * len(operands)), f"llvm.{name}.{suffix}"
    )
    return b.call(function, operands)


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x * y + z, rounded once."""
    return _vector_call(b, "fma", x, y, z)


def dot_bytes(b: Builder, codes: Value, digits: Value, sums: Value) -> Value:
    """sums + codes x digits, [16] int32 each: four bytes a lane, unsigned codes and signed digits. See `byte_dots`."""
    kind = ir.FunctionType(i32x16, [i32x16] * 3)
    return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.x86.avx512.vpdpbusd.512"), [sums, codes, digits])


def nearest(b: Builder, x: Value) -> Value:
    """x rounded to a whole number, ties to the even one."""
    return _vector_call(b, "rint", x)


def absolute(b: Builder, x: Value) -> Value:
    return _vector_call(b, "fabs", x)


def maximum(b: Builder, x: Value, y: Value) -> Value:
    """The larger of two lanes; y where either is not a number."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def loop(
    b: Builder, count: Value | int, carried: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]]
) -> list[Value]:
    """`for i in range(count): carried = body(i, carried)`; the carried values stay in registers."""
    count = integer(count) if isinstance(count, int) else count
    before = b.block
    head, inside, after = (b.append_basic_block(name) for name in ("loop.head", "loop.body", "loop.after"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(i64)
    values = [b.phi(value.type) for value in carried]
    b.cbranch(b.icmp_signed("<", index, count), inside, after)
    b.position_at_end(inside)
    results = list(body(index, list(values)))
    following = b.add(index, integer(1))
    end = b.block
    b.branch(head)
    for phi, first, again in zip([index, *values], [integer(0), *carried], [following, *results], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(again, end)
    b.position_at_end(after)
    return values


def store_some(b: Builder, vector: Value, address: Value, valid: Value) -> None:
    """Store the first `valid` lanes (all of them when valid >= 16, none when valid <= 0)."""
    whole = b.icmp_signed(">=", valid, integer(LANES))
    with b.if_else(whole) as (every, some):
        with every:
            store(b, vector, address)
        with some:

            def one(lane: Value, _: list[Value]) -> list[Value]:
                store(b, b.extract_element(vector, lane), at(b, address, b.mul(lane, integer(4))))
                return []

            loop(b, valid, [], one)


def store_corner(
    b: Builder, tile: Sequence[Value], panels: int, address: Value, stride: Value, rows: Value, columns: Value
) -> None:
    """Store the part of a tile [tile rows, panels] of vectors that lies in the first `rows` rows and `columns` columns.

    A matrix has few such corners, so this saves code rather than time.
    """
    kept = b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(f32x16, len(tile))), i64)
    for index, vector in enumerate(tile):
        store(b, vector, at(b, kept, 4 * LANES * index))

    def least(value: Value, bound: int) -> Value:
        return b.select(b.icmp_signed("<", value, integer(bound)), value, integer(bound))

    def row(r: Value, _: list[Value]) -> list[Value]:
        source = at(b, kept, b.mul(r, integer(4 * LANES * panels)))
        target = at(b, address, b.mul(r, stride))

        def column(c: Value, _: list[Value]) -> list[Value]:
            place = b.mul(c, integer(4))
            store(b, load(b, at(b, source, place), f32, 4), at(b, target, place))
            return []

        loop(b, least(columns, panels * LANES), [], column)
        return []

    loop(b, least(rows, len(tile) // panels), [], row)


def switch(b: Builder, value: Value, cases: dict[int, Callable[[], None]], keys: dict[int, int]) -> None:
    """Run `cases[keys[value]]`; nothing for a value without a key."""
    done = b.append_basic_block("switch.done")
    choice = b.switch(value, done)
    for name, body in cases.items():
        block = b.append_basic_block(f"case.{name}")
        for key in (key for key, wanted in keys.items() if wanted == name):
            choice.add_case(integer(key), block)
        b.position_at_end(block)
        body()
        b.branch(done)
    b.position_at_end(done)


def shuffle(b: Builder, x: Value, y: Value, places: Sequence[int]) -> Value:
    """Lanes picked from x (0 .. 15) and y (16 .. 31)."""
    return b.shuffle_vector(x, y, ir.Constant(i32x16, list(places)))


def across(b: Builder, vector: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """All lanes combined in a fixed tree (lane i with i + 8, then + 4, + 2, + 1); the result stands in every lane."""
    for distance in (8, 4, 2, 1):
        turned = shuffle(b, vector, vector, [(lane + distance) % LANES for lane in range(LANES)])
        vector = combine(vector, turned)
    return vector


def transpose(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """16 vectors of 16 lanes, transposed by four perfect shuffles of the whole set."""
    rows = list(rows)
    low = [place for lane in range(LANES // 2) for place in (lane, lane + LANES)]
    high = [place + LANES // 2 for place in low]
    for _ in range(4):
        pairs = list(zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True))
        rows = [shuffle(b, x, y, places) for x, y in pairs for places in (low, high)]
    return rows


def exponential(b: Builder, x: Value) -> Value:
    """exp(x) for x <= 88, relative error below 2e-7; exactly 1 at 0 and exactly 0 below -87.3, -inf included.

    x = n log 2 + r with |r| <= log 2 / 2; exp(r) by the polynomial of Cephes' expf (Moshier), 2^n by its exponent bits.
    """
    inside = maximum(b, splat(-87.3), x)
    n = nearest(b, b.fmul(inside, splat(1.44269504088896341)))
    r = fma(b, n, splat(-0.693359375), inside)
    r = fma(b, n, splat(2.12194440e-4), r)
    series = splat(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        series = fma(b, series, r, splat(coefficient))
    value = fma(b, series, b.fmul(r, r), b.fadd(r, splat(1.0)))
    exponent = b.shl(b.add(b.fptosi(n, i32x16), splat_int(127)), splat_int(23))
    value = b.fmul(value, b.bitcast(exponent, f32x16))
    return b.select(b.fcmp_ordered("<", x, splat(-87.3)), splat(0.0), value)


def square_root(b: Builder, x: Value) -> Value:
    return _vector_call(b, "sqrt", x)


def load_some(b: Builder, address: Value, valid: Value) -> Value:
    """The first `valid` elements, fewer than 16, and zero beyond."""

    def one(lane: Value, values: list[Value]) -> list[Value]:
        element = load(b, at(b, address, b.mul(lane, integer(4))), f32, align=4)
        return [b.insert_element(values[0], element, lane)]

    return loop(b, valid, [splat(0.0)], one)[0]
