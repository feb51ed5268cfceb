"""The inner loop of every matrix product on the CPU: some panels of weights times some rows of activations.

    sum[r][lane] = fma(x[r, i], w[i, lane], sum[r][lane])      for i = 0, 1, 2, ... in this order, from zero

Every tile shape, weight format and machine performs exactly these operations for an output, so results are bit-equal
whatever the number of rows and whoever the neighbours are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numba import njit

from overdrive.device.cpu.formats import Format
from overdrive.device.cpu.lanes import (
    Builder,
    Value,
    accumulators,
    at,
    broadcast_load,
    f32,
    f32x16,
    fma,
    half,
    i8,
    i32x16,
    integer,
    load_lanes,
    loop,
    splat,
    splat_int,
)

WIDE = 2 if accumulators() >= 24 else 1  # panels of a tile over float32 panels
TALL = 12 if accumulators() >= 24 else 6  # rows of a full one
STEP = TALL // 3  # the last tile's height is a multiple of this


@njit(inline="always")
def tile_height(rows):
    """Height of the tile that takes the next `rows` rows or the first TALL of them."""
    return min(TALL, (rows + STEP - 1) // STEP * STEP)


@dataclass(frozen=True, slots=True)
class Activations:
    """Rows of float32 in memory: element i of row r at `address + i * step + r * stride` (bytes).

    rows: how many there are, when a tile may be taller than that: it then reads the last row again.
    """

    address: Value
    step: int
    stride: Value | int
    rows: Value | None = None

    def row(self, b: Builder, r: int) -> Value:
        if isinstance(self.stride, int):
            return at(b, self.address, r * self.stride)
        index = integer(r)
        if self.rows is not None:
            last = b.sub(self.rows, integer(1))
            index = b.select(b.icmp_signed("<", index, last), index, last)
        return at(b, self.address, b.mul(self.stride, index))


def walk(
    b: Builder,
    form: Format,
    panels: list[Value],
    inputs: Value,
    carried: list[Value],
    body: Callable[[Value, list[list[Value]], list[Value]], list[Value]],
) -> list[Value]:
    """Call `body(i, weights, carried) -> carried` for inputs i = 0, 2, 4, ...

    panels: addresses of the panels to walk side by side. weights[p]: the float weights of inputs i and i + 1.
    """
    block_inputs = integer(form.block) if form.block else inputs
    pairs = b.sdiv(block_inputs, integer(2))
    block_bytes = b.add(integer(form.head_bytes), b.mul(pairs, integer(form.pair_bytes)))

    def block(index: Value, values: list[Value]) -> list[Value]:
        heads = [at(b, panel, b.mul(index, block_bytes)) for panel in panels]
        scales = [block_scales(b, form, head) for head in heads]
        first = b.mul(index, block_inputs)

        def pair(j: Value, values: list[Value]) -> list[Value]:
            offset = b.add(integer(form.head_bytes), b.mul(j, integer(form.pair_bytes)))
            weights = [_pair(b, form, at(b, head, offset), scale) for head, scale in zip(heads, scales, strict=True)]
            return body(b.add(first, b.mul(j, integer(2))), weights, values)

        return loop(b, pairs, values, pair)

    return loop(b, b.sdiv(inputs, block_inputs), carried, block)


def product(
    b: Builder, form: Format, panels: list[Value], x: Activations, rows: int, inputs: Value, sums: list[Value]
) -> list[Value]:
    """Add the tile's products to `sums`, [rows * panels] vectors, row-major; returns the new sums."""
    addresses = [x.row(b, r) for r in range(rows)]

    def body(i: Value, weights: list[list[Value]], values: list[Value]) -> list[Value]:
        for half_pair in range(2):
            offset = b.mul(b.add(i, integer(half_pair)), integer(x.step))
            values = [
                fma(b, element, weights[p][half_pair], values[r * len(panels) + p])
                for r in range(rows)
                for element in [broadcast_load(b, at(b, addresses[r], offset))]
                for p in range(len(panels))
            ]
        return values

    return walk(b, form, panels, inputs, sums, body)


def zeros(count: int) -> list[Value]:
    return [splat(0.0)] * count


def block_scales(b: Builder, form: Format, head: Value) -> tuple[Value, Value] | None:
    """Scale and minimum of a block, 16 lanes each; None when codes are used as they are."""
    if not form.scale_bytes:
        return None
    element = half if form.scale_bytes == 2 else f32
    scale = load_lanes(b, head, element)
    scale = b.fpext(scale, f32x16) if element == half else scale
    if form.minimum == "stored":
        minimum = load_lanes(b, at(b, head, 16 * form.scale_bytes), element)
        return scale, b.fpext(minimum, f32x16) if element == half else minimum
    if form.minimum == "centre":
        return scale, b.fmul(scale, splat(-8.0))
    return scale, splat(-0.0)


def _pair(b: Builder, form: Format, address: Value, scale: tuple[Value, Value] | None) -> list[Value]:
    """Weights of two consecutive inputs. Half-precision scale times code is exact, so the FMA rounds like mul + add."""
    if form.bits == 32:
        return [load_lanes(b, address), load_lanes(b, at(b, address, 64))]
    if form.bits == 4:
        both = b.zext(load_lanes(b, address, i8), i32x16)
        codes = [b.and_(both, splat_int(15)), b.lshr(both, splat_int(4))]
    else:
        codes = [b.sext(load_lanes(b, at(b, address, 16 * k), i8), i32x16) for k in range(2)]
    floats = [b.sitofp(code, f32x16) for code in codes]
    if scale is None:
        return floats
    if form.minimum == "none":
        return [b.fmul(scale[0], value) for value in floats]
    return [fma(b, scale[0], value, scale[1]) for value in floats]
