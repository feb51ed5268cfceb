"""Native kernels of the quantised linear: few rows straight from the codes, many rows through a float panel.

few rows    for each group of 64 outputs: all rows at once, each weight decoded in registers and used for every row
many rows   for each piece of a group: decode it once into scratch, then tiles of rows over it; the activations were
            laid out by `pack_rows` so that a tile reads them in one stream
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from numba import cfunc, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.formats import FLOAT32, FORMATS, GROUP, ROWS_PER_GROUP, Format
from overdrive.device.cpu.lanes import (
    LANES,
    Builder,
    Value,
    accumulators,
    at,
    integer,
    load_lanes,
    loop,
    splat,
    store,
    store_corner,
    switch,
)
from overdrive.device.cpu.memory import load_float, load_ints, store_float, take
from overdrive.device.cpu.tiles import STEP, TALL, WIDE, Activations, product, tile_height, walk, zeros

FEW_TILES = (1, 2, 4, 6, 8, 12, 16) if accumulators() >= 24 else (1, 2, 4, 6)  # tile heights of the first path
FEW_ROWS = FEW_TILES[-1]  # at most this many rows take it


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where sums go: `y = sum * scale + bias`, scale and bias (addresses of float32) only where not zero."""

    scale: Value
    bias: Value
    y: Value
    stride: Value
    valid: Value  # outputs from this column on that exist

    def write(self, b: Builder, sums: list[Value], rows: Value, panels: int, first: Value, scaled: bool) -> None:
        """Write the first `rows` rows of [tile rows, panels] sums; `first` is the first panel's place in the group."""
        column = b.mul(first, integer(LANES))
        place = at(b, self.y, b.mul(column, integer(4)))
        offsets = [b.mul(b.add(column, integer(LANES * p)), integer(4)) for p in range(panels)]
        if scaled:
            scales = [load_lanes(b, at(b, self.scale, offset)) for offset in offsets]
            sums = [b.fmul(total, scales[index % panels]) for index, total in enumerate(sums)]
        biases = [self._bias(b, offset) for offset in offsets]
        sums = [b.fadd(total, biases[index % panels]) for index, total in enumerate(sums)]
        valid = b.sub(self.valid, column)
        tall = b.icmp_signed(">=", rows, integer(len(sums) // panels))
        wide = b.icmp_signed(">=", valid, integer(panels * LANES))
        with b.if_else(b.and_(tall, wide)) as (whole, part):
            with whole:
                for index, total in enumerate(sums):
                    r, p = divmod(index, panels)
                    store(b, total, at(b, at(b, place, b.mul(self.stride, integer(r))), 4 * LANES * p))
            with part:
                store_corner(b, sums, panels, place, self.stride, rows, valid)

    def _bias(self, b: Builder, offset: Value) -> Value:
        """Biases of a panel's outputs; minus zero where there are none, which changes nothing when added."""
        before = b.block
        with b.if_then(b.icmp_signed("!=", self.bias, integer(0))):
            loaded = load_lanes(b, at(b, self.bias, offset))
            inside = b.block
        bias = b.phi(loaded.type)
        bias.add_incoming(splat(-0.0), before)
        bias.add_incoming(loaded, inside)
        return bias


@intrinsic(prefer_literal=True)
def multiply_group(context, name, rows, weights, panel_bytes, scale, bias, x, x_stride, y, y_stride, inputs, valid):
    """All of 1 .. FEW_ROWS rows times one group of panels, straight from the codes."""
    form = FORMATS[name.literal_value]

    def emit(context, b, signature, arguments):
        _, rows, weights, panel_bytes, scale, bias, x, x_stride, y, y_stride, inputs, valid = arguments
        outputs = Outputs(scale, bias, y, y_stride, valid)

        def case(count: int) -> None:
            width = max(p for p in (1, 2, 4) if p == 1 or p * count <= accumulators())
            tile = Activations(x, 4, x_stride, rows)

            def strip(index: Value, _: list[Value]) -> list[Value]:
                first = b.mul(index, integer(width))
                panels = [at(b, weights, b.mul(panel_bytes, b.add(first, integer(p)))) for p in range(width)]
                sums = product(b, form, panels, tile, count, inputs, zeros(count * width))
                outputs.write(b, sums, rows, width, first, form.scaled_rows)
                return []

            loop(b, GROUP // width, [], strip)

        tiles = {rows: min(tile for tile in FEW_TILES if tile >= rows) for rows in range(1, FEW_ROWS + 1)}
        switch(b, rows, {tile: partial(case, tile) for tile in FEW_TILES}, tiles)
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 11), emit


@intrinsic(prefer_literal=True)
def decode_panels(context, name, weights, panel_bytes, scratch, inputs):
    """WIDE panels as float32 panels in scratch."""
    form = FORMATS[name.literal_value]

    def emit(context, b, signature, arguments):
        _, weights, panel_bytes, scratch, inputs = arguments
        size = b.mul(inputs, integer(FLOAT32.pair_bytes // 2))

        def body(i: Value, pairs: list[list[Value]], carried: list[Value]) -> list[Value]:
            for p, pair in enumerate(pairs):
                place = at(b, at(b, scratch, b.mul(size, integer(p))), b.mul(i, integer(4 * LANES)))
                store(b, pair[0], place)
                store(b, pair[1], at(b, place, 4 * LANES))
            return carried

        walk(b, form, [at(b, weights, b.mul(panel_bytes, integer(p))) for p in range(WIDE)], inputs, [], body)
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 4), emit


@intrinsic(prefer_literal=True)
def multiply_tile(context, scaled, height, rows, panels, panel_bytes, scale, bias, x, y, y_stride, inputs, valid):
    """`rows` of a tile of `height` packed rows times WIDE float32 panels."""
    has_scale = bool(scaled.literal_value)

    def emit(context, b, signature, arguments):
        _, height, rows, weights, panel_bytes, scale, bias, x, y, y_stride, inputs, valid = arguments
        outputs = Outputs(scale, bias, y, y_stride, valid)

        def case(count: int) -> None:
            panels = [at(b, weights, b.mul(panel_bytes, integer(p))) for p in range(WIDE)]
            tile = Activations(x, 4 * count, 4)
            sums = product(b, FLOAT32, panels, tile, count, inputs, zeros(count * WIDE))
            outputs.write(b, sums, rows, WIDE, integer(0), has_scale)

        heights = range(STEP, TALL + 1, STEP)
        switch(b, height, {count: partial(case, count) for count in heights}, {h: h for h in heights})
        return context.get_dummy_value()

    return types.void(scaled, *[types.int64] * 11), emit


def few_rows(form: Format) -> CFunc:
    """Kernel for 1 .. FEW_ROWS rows."""
    name, source = form.name, SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        weights, scale, bias, x, y, rows, x_stride, y_stride, inputs, outputs, panel, _, _ = load_ints(a + 8, 13)
        groups = (outputs + ROWS_PER_GROUP - 1) // ROWS_PER_GROUP
        g = take(a)
        while g < groups:
            first = g * ROWS_PER_GROUP
            multiply_group(
                name,
                rows,
                weights + g * GROUP * panel,
                panel,
                scale + 4 * first,
                bias + 4 * first if bias else 0,
                x,
                x_stride,
                y + 4 * first,
                y_stride,
                inputs,
                outputs - first,
            )
            g = take(a)

    return kernel


def many_rows(form: Format) -> CFunc:
    """Kernel for any number of rows; `x` is what `pack_rows` made of them."""
    name, source, scaled = form.name, SOURCE, int(form.scaled_rows)
    decoded = form.bits != 32

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        weights, scale, bias, x, y, rows, _, y_stride, inputs, outputs, panel, scratch, size = load_ints(a + 8, 13)
        scratch += thread * size
        pieces = (outputs + WIDE * LANES - 1) // (WIDE * LANES)
        piece = take(a)
        while piece < pieces:
            first = piece * WIDE * LANES
            panels, panel_bytes = weights + piece * WIDE * panel, panel
            if decoded:
                decode_panels(name, panels, panel, scratch, inputs)
                panels, panel_bytes = scratch, inputs * 4 * LANES
            for r in range(0, rows, TALL):
                multiply_tile(
                    scaled,
                    tile_height(rows - r),
                    rows - r,
                    panels,
                    panel_bytes,
                    scale + 4 * first,
                    bias + 4 * first if bias else 0,
                    x + 4 * r * inputs,
                    y + r * y_stride + 4 * first,
                    y_stride,
                    inputs,
                    outputs - first,
                )
            piece = take(a)

    return kernel


def pack_rows() -> CFunc:
    """Kernel that lays rows out for `many_rows`: tiles of TALL rows, [inputs, TALL] each, the last one less tall."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        x, packed, rows, x_stride, inputs = load_ints(a + 8, 5)
        tile = take(a)
        while tile * TALL < rows:
            first = tile * TALL
            height = tile_height(rows - first)
            place = packed + 4 * first * inputs
            for r in range(height):
                # Rows past the last repeat it: their sums are computed and dropped.
                source_row = x + min(first + r, rows - 1) * x_stride
                for i in range(inputs):
                    store_float(place + 4 * (i * height + r), load_float(source_row + 4 * i))
            tile = take(a)

    return kernel
