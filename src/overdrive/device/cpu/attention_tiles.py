"""Pieces of paged attention in explicit lanes: scores, softmax, weighted sums, and copies where pages do not fit.

A block is BLOCK keys at absolute positions, in PANELS panels of 16. A panel of keys lies transposed, [D, 16 keys]; a
panel of values as it is, [16 keys, D]; both at the same place within the memory of keys and of values. Queries, scores
and sums are row-major; `dims` is the head width D, `padded(dims)` the width of a row of sums.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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
from overdrive.device.cpu.tiles import STEP, TALL, WIDE, zeros

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
    """Panels of keys from single keys at byte `offsets`, whole lanes of them."""
    base, offsets, panels, out = arguments

    def panel(p: Value, _: list[Value]) -> list[Value]:
        place = at(b, offsets, b.mul(p, integer(8 * LANES)))
        keys = [b.add(base, load(b, at(b, place, 8 * lane), i64, 8)) for lane in range(LANES)]
        target = at(b, out, b.mul(p, integer(4 * LANES * dims)))

        def columns(c: Value, _: list[Value]) -> list[Value]:
            lines = [load_lanes(b, at(b, key, b.mul(c, integer(4 * LANES)))) for key in keys]
            corner = at(b, target, b.mul(c, integer(4 * LANES * LANES)))
            for i, line in enumerate(transpose(b, lines)):
                store(b, line, at(b, corner, 4 * LANES * i))
            return []

        loop(b, dims // LANES, [], columns)
        return []

    loop(b, panels, [], panel)


def _gather_values(b: Builder, dims: int, arguments: list[Value]) -> None:
    """Values at byte `offsets` one after the other, whole lanes of them."""
    base, offsets, count, out = arguments

    def key(k: Value, _: list[Value]) -> list[Value]:
        source = b.add(base, load(b, at(b, offsets, b.mul(k, integer(8))), i64, 8))
        target = at(b, out, b.mul(k, integer(4 * dims)))
        for p in range(dims // LANES):
            store(b, load_lanes(b, at(b, source, 4 * LANES * p)), at(b, target, 4 * LANES * p))
        return []

    loop(b, count, [], key)


def _accumulate(
    b: Builder, lines: list[Value], coming: list[Value], stride: int, x: list[Value], count: Value, sums: list[Value]
) -> list[Value]:
    """sums[row, line] += x[row][i] * (16 numbers at line + i * stride), i below count; asks for those at `coming`."""

    def step(i: Value, values: list[Value]) -> list[Value]:
        offset = b.mul(i, integer(stride))
        for address in coming:
            prefetch(b, b.add(address, offset))
        weights = [load_lanes(b, b.add(line, offset)) for line in lines]
        elements = [broadcast_load(b, b.add(row, b.mul(i, integer(4)))) for row in x]
        products = [(element, weight) for element in elements for weight in weights]
        return [fma(b, *pair, total) for pair, total in zip(products, values, strict=True)]

    return loop(b, count, sums, step)


def _place(b: Builder, base: Value, places: Value, panel: Value) -> Value:
    return b.add(base, load(b, at(b, places, b.mul(panel, integer(8))), i64, 8))


def _rows(b: Builder, first: Value, count: int, stride: int) -> list[Value]:
    return [at(b, first, stride * r) for r in range(count)]


def _by_height(b: Builder, height: Value, case: Callable[[int], None]) -> None:
    heights = range(STEP, TALL + 1, STEP)
    switch(b, height, {rows: partial(case, rows) for rows in heights}, {rows: rows for rows in heights})


def _store_rows(b: Builder, sums: list[Value], target: Value, width: int) -> None:
    for index, total in enumerate(sums):
        r, p = divmod(index, WIDE)
        store(b, total, at(b, target, 4 * (r * width + p * LANES)))


def _score_tile(b: Builder, dims: int, arguments: list[Value]) -> None:
    """scores[height, BLOCK] = queries[height, dims] x keys, for `strips` of WIDE panels at the eight `places`."""
    height, queries, k_base, places, ahead, strips, scores = arguments

    def case(rows: int) -> None:
        def strip(j: Value, _: list[Value]) -> list[Value]:
            panels = [b.add(b.mul(j, integer(WIDE)), integer(p)) for p in range(WIDE)]
            lines = [_place(b, k_base, places, panel) for panel in panels]
            coming = [_place(b, k_base, ahead, panel) for panel in panels]
            x = _rows(b, queries, rows, 4 * dims)
            sums = _accumulate(b, lines, coming, 4 * LANES, x, integer(dims), zeros(rows * WIDE))
            _store_rows(b, sums, at(b, scores, b.mul(j, integer(4 * LANES * WIDE))), BLOCK)
            return []

        loop(b, strips, [], strip)

    _by_height(b, height, case)


def _weigh_tile(b: Builder, dims: int, arguments: list[Value]) -> None:
    """sums[height, padded(dims)] = weights[height, BLOCK] x values, for the first `count` keys."""
    height, weights, v_base, places, ahead, count, sums = arguments
    panels = b.sdiv(b.add(count, integer(LANES - 1)), integer(LANES))

    def case(rows: int) -> None:
        def strip(j: Value, _: list[Value]) -> list[Value]:
            column = b.mul(j, integer(4 * LANES * WIDE))

            def panel(k: Value, totals: list[Value]) -> list[Value]:
                first = b.mul(k, integer(LANES))
                left = b.sub(count, first)
                some = b.select(b.icmp_signed("<", left, integer(LANES)), left, integer(LANES))
                own, next_ = (at(b, _place(b, v_base, where, k), column) for where in (places, ahead))
                lines, coming = ([at(b, place, 4 * LANES * p) for p in range(WIDE)] for place in (own, next_))
                x = _rows(b, at(b, weights, b.mul(first, integer(4))), rows, 4 * BLOCK)
                return _accumulate(b, lines, coming, 4 * dims, x, some, totals)

            totals = loop(b, panels, zeros(rows * WIDE), panel)
            _store_rows(b, totals, at(b, sums, column), padded(dims))
            return []

        loop(b, padded(dims) // (WIDE * LANES), [], strip)

    _by_height(b, height, case)


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


gather_keys = _piece("base offsets panels out", _gather_keys)
gather_values = _piece("base offsets count out", _gather_values)
score_tile = _piece("height queries k_base places ahead strips scores", _score_tile)
weigh_tile = _piece("height weights v_base places ahead count sums", _weigh_tile)
soften = _piece("scores lowest highest top total", _soften)
fold = _piece("run_top run_total run_sums top total sums", _fold)
finish = _piece("total sums out", _finish)
