"""Pieces of paged attention in explicit lanes: copying keys and values into panels, scores, softmax, weighted sums.

A block is BLOCK keys at absolute positions. Its keys lie transposed, PANELS panels of [D, 16 keys]; its values as
panels of [BLOCK keys, 16 of D]; so scores and weighted sums are the same tiles that the linear layers use. Queries,
scores and sums are row-major; `dims` is the head width D, `padded(dims)` the width of a row of sums.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from overdrive.device.cpu.formats import FLOAT32
from overdrive.device.cpu.lanes import (
    LANES,
    Builder,
    Value,
    across,
    at,
    broadcast,
    broadcast_load,
    exponential,
    fma,
    i32,
    i32x16,
    i64,
    integer,
    load,
    load_lanes,
    loop,
    maximum,
    prefetch,
    splat,
    store,
    store_some,
    switch,
    transpose,
)
from overdrive.device.cpu.tiles import STEP, TALL, WIDE, Activations, product, zeros

BLOCK = 128
PANELS = BLOCK // LANES
NOTHING = -1e30  # the top score of no keys at all: finite, so that differences are

Emit = Callable[[Builder, int, list[Value]], None]


def padded(dims: int) -> int:
    """Width of a row of sums: whole tiles."""
    return -(-dims // (WIDE * LANES)) * WIDE * LANES


def _piece(names: str, emit: Emit):
    """The intrinsic `f(dims, *names)` of a literal head width and 64-bit integers."""
    parameters = ["context", "dims", *names.split()]

    def typed(context, dims, *rest):
        def generate(context, b, signature, values):
            emit(b, dims.literal_value, list(values[1:]))
            return context.get_dummy_value()

        return types.void(dims, *[types.int64] * len(rest)), generate

    # numba matches arguments by name and cannot lower a star.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in parameters])
    typed.__signature__ = signature  # type: ignore[attr-defined]
    return intrinsic(prefer_literal=True)(typed)


def _gather_keys(b: Builder, dims: int, arguments: list[Value]) -> None:
    """Panels of [dims, 16 keys] from keys at byte `offsets`; meanwhile ask for those at the offsets `ahead`."""
    base, offsets, ahead, panels, out = arguments

    def panel(p: Value, _: list[Value]) -> list[Value]:
        place = b.mul(p, integer(8 * LANES))
        keys = [b.add(base, load(b, at(b, at(b, offsets, place), 8 * lane), i64, 8)) for lane in range(LANES)]
        coming = [b.add(base, load(b, at(b, at(b, ahead, place), 8 * lane), i64, 8)) for lane in range(LANES)]
        target = at(b, out, b.mul(p, integer(4 * LANES * dims)))

        def columns(c: Value, _: list[Value]) -> list[Value]:
            offset = b.mul(c, integer(4 * LANES))
            for key in coming:
                prefetch(b, b.add(key, offset))
            lines = [load_lanes(b, b.add(key, offset)) for key in keys]
            corner = at(b, target, b.mul(c, integer(4 * LANES * LANES)))
            for i, line in enumerate(transpose(b, lines)):
                store(b, line, at(b, corner, 4 * LANES * i))
            return []

        loop(b, dims // LANES, [], columns)
        return []

    loop(b, panels, [], panel)


def _gather_values(b: Builder, dims: int, arguments: list[Value]) -> None:
    """Panels of [BLOCK keys, 16 of dims], the same way."""
    base, offsets, ahead, count, out = arguments

    def key(k: Value, _: list[Value]) -> list[Value]:
        place = b.mul(k, integer(8))
        source = b.add(base, load(b, at(b, offsets, place), i64, 8))
        coming = b.add(base, load(b, at(b, ahead, place), i64, 8))
        target = at(b, out, b.mul(k, integer(4 * LANES)))
        for p in range(dims // LANES):
            prefetch(b, at(b, coming, 4 * LANES * p))
            store(b, load_lanes(b, at(b, source, 4 * LANES * p)), at(b, target, 4 * LANES * BLOCK * p))
        return []

    loop(b, count, [], key)


def _tile_product(
    b: Builder,
    height: Value,
    x: Value,
    x_width: int,
    panels: Value,
    panel_rows: int,
    inputs: Value,
    y: Value,
    y_width: int,
    strips: Value,
) -> None:
    """y[height, strips of WIDE panels] = x[height, inputs] times panels of [panel_rows, 16]; x and y row-major."""
    size = 4 * LANES * panel_rows

    def case(rows: int) -> None:
        def strip(j: Value, _: list[Value]) -> list[Value]:
            first = at(b, panels, b.mul(j, integer(WIDE * size)))
            tile = Activations(x, 4, 4 * x_width)
            strip_panels = [at(b, first, size * p) for p in range(WIDE)]
            sums = product(b, FLOAT32, strip_panels, tile, rows, inputs, zeros(rows * WIDE))
            for index, total in enumerate(sums):
                r, p = divmod(index, WIDE)
                place = at(b, y, b.mul(j, integer(4 * LANES * WIDE)))
                store(b, total, at(b, place, 4 * (r * y_width + p * LANES)))
            return []

        loop(b, strips, [], strip)

    heights = range(STEP, TALL + 1, STEP)
    switch(b, height, {rows: partial(case, rows) for rows in heights}, {rows: rows for rows in heights})


def _score_tile(b: Builder, dims: int, arguments: list[Value]) -> None:
    height, queries, keys, scores, count = arguments
    _tile_product(b, height, queries, dims, keys, dims, integer(dims), scores, BLOCK, count)


def _weigh_tile(b: Builder, dims: int, arguments: list[Value]) -> None:
    height, weights, values, keys, sums = arguments
    width = padded(dims)
    count = integer(width // (WIDE * LANES))
    _tile_product(b, height, weights, BLOCK, values, BLOCK, keys, sums, width, count)


def _soften(b: Builder, dims: int, arguments: list[Value]) -> None:
    """Scores of one query -> e^(score - top), 0 where not lowest <= key <= highest; key 0 is the block's first."""
    scores, lowest, highest, top, total = arguments
    lowest, highest = (broadcast(b, b.trunc(bound, i32)) for bound in (lowest, highest))
    lines = []
    for p in range(PANELS):
        key = ir.Constant(i32x16, [p * LANES + lane for lane in range(LANES)])
        seen = b.and_(b.icmp_signed(">=", key, lowest), b.icmp_signed("<=", key, highest))
        lines.append(b.select(seen, load_lanes(b, at(b, scores, 4 * LANES * p)), splat(float("-inf"))))
    best = splat(NOTHING)
    for line in lines:
        best = maximum(b, best, line)
    best = across(b, best, lambda x, y: maximum(b, x, y))
    sums = splat(0.0)
    for p, line in enumerate(lines):
        weight = exponential(b, b.fsub(line, best))
        store(b, weight, at(b, scores, 4 * LANES * p))
        sums = b.fadd(sums, weight)
    sums = across(b, sums, b.fadd)
    first = ir.Constant(i32, 0)
    store(b, b.extract_element(best, first), top)
    store(b, b.extract_element(sums, first), total)


def _fold(b: Builder, dims: int, arguments: list[Value]) -> None:
    """Fold a block's (top, total, sums) of one query into the running ones."""
    run_top, run_total, run_sums, top, total, sums = arguments
    old, new = broadcast_load(b, run_top), broadcast_load(b, top)
    best = maximum(b, old, new)
    keep, take = exponential(b, b.fsub(old, best)), exponential(b, b.fsub(new, best))
    first = ir.Constant(i32, 0)
    both = fma(b, broadcast_load(b, total), take, b.fmul(broadcast_load(b, run_total), keep))
    store(b, b.extract_element(best, first), run_top)
    store(b, b.extract_element(both, first), run_total)
    for p in range(padded(dims) // LANES):
        place = at(b, run_sums, 4 * LANES * p)
        store(b, fma(b, load_lanes(b, at(b, sums, 4 * LANES * p)), take, b.fmul(load_lanes(b, place), keep)), place)


def _finish(b: Builder, dims: int, arguments: list[Value]) -> None:
    """out[dims] = sums / total."""
    total, sums, out = arguments
    divisor = broadcast_load(b, total)
    for p in range(-(-dims // LANES)):
        value = b.fdiv(load_lanes(b, at(b, sums, 4 * LANES * p)), divisor)
        store_some(b, value, at(b, out, 4 * LANES * p), integer(dims - p * LANES))


gather_keys = _piece("base offsets ahead panels out", _gather_keys)
gather_values = _piece("base offsets ahead count out", _gather_values)
score_tile = _piece("height queries keys scores strips", _score_tile)
weigh_tile = _piece("height weights values count sums", _weigh_tile)
soften = _piece("scores lowest highest top total", _soften)
fold = _piece("run_top run_total run_sums top total sums", _fold)
finish = _piece("total sums out", _finish)
