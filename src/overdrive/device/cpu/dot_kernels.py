"""Native kernels of the linear whose codes are multiplied as bytes, for any number of rows.

Activations become whole numbers q of two signed bytes, 32 at a time with a scale: x = step * q with |q| <= 32512. With
codes c and weights scale * c + minimum, a block of 32 inputs is

    scale * step * (256 sum(c * high) + sum(c * low)) + minimum * step * sum(q)        q = 256 high + low

The sums in brackets are whole numbers and exact in any order; blocks are added up in order, in float32, by the same
operations for every tile shape: results are bit-equal whatever the number of rows and whoever the neighbours are.
(Integer sums with a scale for each block are how ggml multiplies. It keeps eight bits of the activations, which changes
one greedy token of SmolLM2 in forty; sixteen change one in thousands.)
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba import cfunc, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.formats import FORMATS, Format
from overdrive.device.cpu.lanes import (
    LANES,
    Builder,
    Value,
    absolute,
    across,
    at,
    broadcast_load,
    dot_bytes,
    f32x16,
    fma,
    i8,
    i32,
    i32x16,
    integer,
    load_lanes,
    loop,
    maximum,
    nearest,
    prefetch,
    splat,
    splat_int,
    store,
    switch,
)
from overdrive.device.cpu.linear_kernels import Outputs
from overdrive.device.cpu.memory import load_ints, take
from overdrive.device.cpu.tiles import Activations, block_scales, zeros

INPUTS = 32  # of a block of activations
HIGH, LOW, STEP, SUM, OFFSET = 0, 32, 64, 68, 72  # bytes of a block: digits, step, step * sum(q), -128 * sum(q)
RECORD = 80
LARGEST = 32512  # of |q|: 127 * 256, so that the high byte fits

DOT_TILES = {1: 2, 2: 2, 3: 2, 4: 2, 6: 1, 8: 1}  # rows of a tile -> panels
DOT_ROWS = max(DOT_TILES)
UNIT = 2  # panels of one task in a small matrix; in a large one twice as many
LARGE = 1024  # outputs of a large matrix
LINE = 64  # bytes of a cache line
QUANTISED = 2  # rows that one task quantises


@intrinsic
def quantise_row(context, x, out, inputs):
    """A row of float32 into blocks of activations."""

    def emit(context, b, signature, arguments):
        x, out, inputs = arguments
        first = ir.Constant(i32, 0)

        def block(index: Value, _: list[Value]) -> list[Value]:
            source, target = at(b, x, b.mul(index, integer(4 * INPUTS))), at(b, out, b.mul(index, integer(RECORD)))
            parts = [load_lanes(b, at(b, source, 4 * LANES * half)) for half in range(2)]
            top = maximum(b, *(absolute(b, part) for part in parts))
            top = across(b, top, lambda u, v: maximum(b, u, v))
            tiny = b.fcmp_ordered("<", top, splat(1e-30))  # of which the inverse may not be finite
            inverse = b.select(tiny, splat(0.0), b.fdiv(splat(float(LARGEST)), top))
            step = b.fmul(top, splat(1.0 / LARGEST))
            whole = [b.fptosi(nearest(b, b.fmul(part, inverse)), i32x16) for part in parts]
            for half, q in enumerate(whole):
                high = b.ashr(b.add(q, splat_int(128)), splat_int(8))
                for place, digits in ((HIGH, high), (LOW, q)):
                    store(b, b.trunc(digits, ir.VectorType(i8, LANES)), at(b, target, place + LANES * half), 1)
            total = across(b, b.add(*whole), b.add)
            for place, value in (
                (STEP, step),
                (SUM, b.fmul(step, b.sitofp(total, f32x16))),
                (OFFSET, b.mul(total, splat_int(-128))),
            ):
                store(b, b.extract_element(value, first), at(b, target, place))
            return []

        loop(b, b.sdiv(inputs, integer(INPUTS)), [], block)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


def _block_sums(b: Builder, form: Format, codes: list[Value], records: list[Value]) -> list[Value]:
    """sum(c * q) over a block as float32, [rows * panels] vectors. codes, records: where they lie."""
    sums = []  # of high digits and of low ones
    for record in records:
        low = broadcast_load(b, at(b, record, OFFSET), i32) if form.bits == 8 else splat_int(0)
        sums += [[splat_int(0), low] for _ in codes]
    quads = 2 if form.bits == 4 else 1  # in 64 bytes
    for piece in range(INPUTS // (4 * quads)):
        for p, place in enumerate(codes):
            raw = load_lanes(b, at(b, place, 64 * piece), i32)
            low = splat_int(0x0F0F0F0F)
            parts = [raw] if quads == 1 else [b.and_(raw, low), b.and_(b.lshr(raw, splat_int(4)), low)]
            for r, record in enumerate(records):
                pair = sums[r * len(codes) + p]
                for k, part in enumerate(parts):
                    for which, digits in enumerate((HIGH, LOW)):
                        offset = digits + 4 * (quads * piece + k)
                        pair[which] = dot_bytes(b, part, broadcast_load(b, at(b, record, offset), i32), pair[which])
    return [b.sitofp(b.add(b.shl(high, splat_int(8)), low), f32x16) for high, low in sums]


def _tile(
    b: Builder, form: Format, panels: list[Value], ahead: Value, x: Activations, rows: int, inputs: Value
) -> list[Value]:
    """The products of a tile, [rows * panels] vectors. ahead: bytes from a weight to one to be asked for meanwhile."""
    rows_of_x = [x.row(b, r) for r in range(rows)]
    block_bytes = form.head_bytes + INPUTS // 2 * form.pair_bytes

    def block(index: Value, totals: list[Value]) -> list[Value]:
        heads = [at(b, panel, b.mul(index, integer(block_bytes))) for panel in panels]
        for head in heads:
            for line in range(0, block_bytes, LINE):
                prefetch(b, at(b, b.add(head, ahead), line))
        records = [at(b, row, b.mul(index, integer(RECORD))) for row in rows_of_x]
        sums = _block_sums(b, form, [at(b, head, form.head_bytes) for head in heads], records)
        scales = [block_scales(b, form, head) for head in heads]
        for r, record in enumerate(records):
            step = broadcast_load(b, at(b, record, STEP))
            for p, scale in enumerate(scales):
                place = r * len(panels) + p
                factor = step if scale is None else b.fmul(scale[0], step)
                totals[place] = fma(b, sums[place], factor, totals[place])
                if scale is not None and form.minimum != "none":
                    totals[place] = fma(b, scale[1], broadcast_load(b, at(b, record, SUM)), totals[place])
        return totals

    return loop(b, b.sdiv(inputs, integer(INPUTS)), zeros(rows * len(panels)), block)


@intrinsic(prefer_literal=True)
def dot_panels(
    context, name, panels, ahead, rows, weights, panel_bytes, scale, bias, x, x_stride, y, y_stride, inputs, valid
):
    """The first 1 .. DOT_ROWS of `rows` rows times an even number of panels."""
    form = FORMATS[name.literal_value]

    def emit(context, b, signature, arguments):
        _, count, ahead, rows, weights, panel_bytes, scale, bias, x, x_stride, y, y_stride, inputs, valid = arguments
        outputs = Outputs(scale, bias, y, y_stride, valid)
        activations = Activations(x, RECORD, x_stride, rows)

        def case(height: int) -> None:
            width = DOT_TILES[height]

            def strip(index: Value, _: list[Value]) -> list[Value]:
                first = b.mul(index, integer(width))
                places = [at(b, weights, b.mul(panel_bytes, b.add(first, integer(p)))) for p in range(width)]
                sums = _tile(b, form, places, ahead, activations, height, inputs)
                outputs.write(b, sums, rows, width, first, form.scaled_rows)
                return []

            loop(b, b.sdiv(count, integer(width)), [], strip)

        most = b.select(b.icmp_signed("<", rows, integer(DOT_ROWS)), rows, integer(DOT_ROWS))
        tiles = {n: min(tile for tile in DOT_TILES if tile >= n) for n in range(1, DOT_ROWS + 1)}
        switch(b, most, {height: partial(case, height) for height in DOT_TILES}, tiles)
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 13), emit


def dot_rows(form: Format) -> CFunc:
    """Kernel for any number of rows of activations that `quantise_rows` made."""
    name, source = form.name, SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        weights, scale, bias, x, y, rows, x_stride, y_stride, inputs, outputs, panel, threads = load_ints(a + 8, 12)
        panels = UNIT if outputs < LARGE else 2 * UNIT
        task = take(a)
        while task * panels * LANES < outputs:
            first = task * panels * LANES
            for r in range(0, rows, DOT_ROWS):
                dot_panels(
                    name,
                    panels,
                    panels * panel * threads,  # this thread's next task, probably
                    rows - r,
                    weights + task * panels * panel,
                    panel,
                    scale + 4 * first,
                    bias + 4 * first if bias else 0,
                    x + r * x_stride,
                    x_stride,
                    y + r * y_stride + 4 * first,
                    y_stride,
                    inputs,
                    outputs - first,
                )
            task = take(a)

    return kernel


def quantise_rows() -> CFunc:
    """Kernel that makes blocks of activations of rows of float32."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        x, x_stride, rows, inputs, out, out_stride = load_ints(a + 8, 6)
        task = take(a)
        while task * QUANTISED < rows:
            for row in range(task * QUANTISED, min(rows, task * QUANTISED + QUANTISED)):
                quantise_row(x + row * x_stride, out + row * out_stride, inputs)
            task = take(a)

    return kernel
