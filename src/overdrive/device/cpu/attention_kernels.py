"""Native kernels of paged attention.

A task is a few tokens of one row (a query tile) and one key head; its *queries* are those tokens' query heads that read
this key head, token-major. For each block of BLOCK keys: copy keys and values from their pages into panels, scores =
queries x keys, softmax within the block, sums = weights x values; then fold the block into the running result:

    top' = max(top, block_top)    total' = total e^(top - top') + block_total e^(block_top - top')    sums' likewise

Blocks stand at absolute positions and are folded in order, so a token's result does not depend on its tile, its batch
mates, the page size or the threads. (Online softmax: Milakov & Gimelshein 2018; tiling: Dao et al. 2022.) With few
tasks every block becomes a task of its own, which stores its part; `fold_parts` folds them in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cfunc, njit
from numba.core.ccallback import CFunc

from overdrive.device.cpu.attention_tiles import (
    BLOCK,
    NOTHING,
    finish,
    fold,
    gather_keys,
    gather_values,
    padded,
    score_tile,
    soften,
    weigh_tile,
)
from overdrive.device.cpu.fingerprint import SOURCE
from overdrive.device.cpu.lanes import LANES
from overdrive.device.cpu.memory import (
    load_double,
    load_float,
    load_int,
    load_int32,
    load_ints,
    store_float,
    store_int,
    take,
)
from overdrive.device.cpu.tiles import TALL, WIDE, tile_height

STORED = 16  # tokens whose keys and values one task stores
ARGUMENTS = 19  # integers; the scale of the scores, a double, follows


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of a task's scratch, for `queries` queries (a multiple of TALL) of `dims` each.

    scratch: [offsets of keys][queries][keys][values][scores][part][running part];  part: [tops][totals][sums]
    """

    dims: int
    queries: int

    @property
    def part(self) -> int:
        return 4 * self.queries * (2 + padded(self.dims))

    @property
    def scratch(self) -> int:
        copies = 8 * BLOCK + 4 * BLOCK * (self.dims + padded(self.dims))
        return -(-(copies + 4 * self.queries * (self.dims + BLOCK) + 2 * self.part) // 64) * 64


@njit
def span(positions, window, first, stop):
    """First block that some token of `first .. stop` sees, and one past the last; and the highest position."""
    low, high = load_int(positions + 8 * first), load_int(positions + 8 * first)
    for t in range(first, stop):
        low, high = min(low, load_int(positions + 8 * t)), max(high, load_int(positions + 8 * t))
    start = max(0, low - window + 1) // BLOCK if window > 0 else 0
    return start, high // BLOCK + 1, high


@njit
def page_offsets(offsets, table, first, count, page_size, page_bytes, line_bytes, head_bytes):
    """Byte offsets of `count` keys from position `first` on; then the last one again, up to BLOCK."""
    done = 0
    while done < count:
        page, slot = divmod(first + done, page_size)
        place = load_int32(table + 4 * page) * page_bytes + head_bytes + slot * line_bytes
        stop = min(count, done + page_size - slot)
        while done < stop:
            store_int(offsets + 8 * done, place)
            place += line_bytes
            done += 1
    last = load_int(offsets + 8 * (count - 1))
    for i in range(count, min(BLOCK, (count + 31) // 32 * 32)):
        store_int(offsets + 8 * i, last)


@njit(inline="always")
def copy_tail(dims, k_pages, v_pages, offsets, count, keys, values):
    """The columns of keys and values that do not fill 16 lanes."""
    for column in range(dims - dims % LANES, dims):
        for i in range(count):
            place = load_int(offsets + 8 * i) + 4 * column
            panel, lane = divmod(i, LANES)
            store_float(keys + 4 * ((panel * dims + column) * LANES + lane), load_float(k_pages + place))
            panel, lane = divmod(column, LANES)
            store_float(values + 4 * ((panel * BLOCK + i) * LANES + lane), load_float(v_pages + place))


@njit(inline="always")
def attend_block(
    dims, width, k_pages, v_pages, offsets, count, first, positions, group, window, queries, n, scratch, part
):
    """Top, total and sums of `n` queries over the `count` keys from position `first` on, into `part`.

    positions: address of the tile's positions. scratch: from its keys on, part: see Layout. width: of a row of sums.
    """
    keys = scratch
    values = keys + 4 * BLOCK * dims
    scores = values + 4 * BLOCK * width
    strips = (count + WIDE * LANES - 1) // (WIDE * LANES)
    even = count + count % 2
    capacity = (n + TALL - 1) // TALL * TALL
    gather_keys(dims, k_pages, offsets, strips * WIDE, keys)
    gather_values(dims, v_pages, offsets, even, values)
    copy_tail(dims, k_pages, v_pages, offsets, min(BLOCK, strips * WIDE * LANES), keys, values)
    for r in range(0, n, TALL):
        score_tile(dims, tile_height(n - r), queries + 4 * dims * r, keys, scores + 4 * BLOCK * r, strips)
    for r in range(n):
        position = load_int(positions + 8 * (r // group)) - first
        lowest = max(position - window + 1, 0) if window > 0 else 0
        soften(dims, scores + 4 * BLOCK * r, lowest, position, part + 4 * r, part + 4 * (capacity + r))
    for r in range(0, n, TALL):
        sums = part + 8 * capacity + 4 * width * r
        weigh_tile(dims, tile_height(n - r), scores + 4 * BLOCK * r, values, even, sums)


@njit(inline="always")
def copy_queries(dims, q, q_stride, first, n, group, head, scale, queries):
    """The tile's queries of one key head, scaled, row-major."""
    for r in range(n):
        source = q + (first + r // group) * q_stride + 4 * dims * (head * group + r % group)
        for i in range(dims):
            store_float(queries + 4 * (r * dims + i), load_float(source + 4 * i) * scale)


@njit(inline="always")
def begin(running, capacity, n, width):
    """A running part that has seen no key."""
    for r in range(n):
        store_float(running + 4 * r, NOTHING)
        store_float(running + 4 * (capacity + r), 0.0)
        for i in range(width):
            store_float(running + 4 * (2 * capacity + r * width + i), 0.0)


@njit(inline="always")
def fold_all(dims, width, running, part, capacity, n):
    for r in range(n):
        sums = 4 * (2 * capacity + r * width)
        top, total = 4 * r, 4 * (capacity + r)
        fold(dims, running + top, running + total, running + sums, part + top, part + total, part + sums)


@njit(inline="always")
def finish_all(dims, width, running, capacity, n, out, first, group, heads, head):
    for r in range(n):
        place = out + 4 * dims * ((first + r // group) * heads + head * group + r % group)
        finish(dims, running + 4 * (capacity + r), running + 4 * (2 * capacity + r * width), place)


def attend_kernel(dims: int) -> CFunc:
    """Attention of head width `dims`. With `parts` every block is a task that stores its part there."""
    width, source = padded(dims), SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        (
            q, q_stride, positions, offsets, table, table_stride, k_pages, v_pages, out, rows,
            kv_heads, group, page_size, window, tile, scratch, scratch_size, parts, part_size,
        ) = load_ints(a + 8, ARGUMENTS)  # fmt: skip
        scale = load_double(a + 8 + 8 * ARGUMENTS)
        scratch += thread * scratch_size
        capacity = (tile * group + TALL - 1) // TALL * TALL
        queries = scratch + 8 * BLOCK
        keys = queries + 4 * dims * capacity
        own_part = keys + 4 * BLOCK * (dims + width + capacity)
        running = own_part + 4 * capacity * (2 + width)
        line = 4 * dims
        head_bytes = page_size * line
        task, seen = take(a), 0
        for row in range(rows):
            row_table = table + row * table_stride
            end = load_int(offsets + 8 * row + 8)
            for first in range(load_int(offsets + 8 * row), end, tile):
                stop = min(end, first + tile)
                n = (stop - first) * group
                height = (n + TALL - 1) // TALL * TALL
                start, after, highest = span(positions, window, first, stop)
                pieces = after - start if parts else 1
                while task < seen + kv_heads * pieces:
                    head, piece = divmod(task - seen, pieces)
                    copy_queries(dims, q, q_stride, first, n, group, head, scale, queries)
                    if not parts:
                        begin(running, height, n, width)
                    for block in range(start + piece, after if not parts else start + piece + 1):
                        key = block * BLOCK
                        count = min(BLOCK, highest + 1 - key)
                        page_offsets(
                            scratch, row_table, key, count, page_size, kv_heads * head_bytes, line, head * head_bytes
                        )
                        place = parts + task * part_size if parts else own_part
                        attend_block(
                            dims, width, k_pages, v_pages, scratch, count, key, positions + 8 * first,
                            group, window, queries, n, keys, place,
                        )  # fmt: skip
                        if not parts:
                            fold_all(dims, width, running, own_part, height, n)
                    if not parts:
                        finish_all(dims, width, running, height, n, out, first, group, kv_heads * group, head)
                    task = take(a)
                seen += kv_heads * pieces

    return kernel


def fold_kernel(dims: int) -> CFunc:
    """Folds the parts that `attend_kernel` stored, a query tile and key head at a time; the same arguments."""
    width, source = padded(dims), SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        (
            _, _, positions, offsets, _, _, _, _, out, rows,
            kv_heads, group, _, window, tile, scratch, scratch_size, parts, part_size,
        ) = load_ints(a + 8, ARGUMENTS)  # fmt: skip
        running = scratch + thread * scratch_size
        task, number, seen = take(a), 0, 0
        for row in range(rows):
            end = load_int(offsets + 8 * row + 8)
            for first in range(load_int(offsets + 8 * row), end, tile):
                stop = min(end, first + tile)
                n = (stop - first) * group
                height = (n + TALL - 1) // TALL * TALL
                start, after, _ = span(positions, window, first, stop)
                for head in range(kv_heads):
                    if number == task:
                        begin(running, height, n, width)
                        for piece in range(after - start):
                            stored = parts + (seen + head * (after - start) + piece) * part_size
                            fold_all(dims, width, running, stored, height, n)
                        finish_all(dims, width, running, height, n, out, first, group, kv_heads * group, head)
                        task = take(a)
                    number += 1
                seen += kv_heads * (after - start)

    return kernel


def store_kernel(dims: int) -> CFunc:
    """Writes keys and values of tokens to their places in the pages."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        k, v, k_stride, v_stride, writes, tokens, k_pages, v_pages, kv_heads, page_size = load_ints(a + 8, 10)
        task = take(a)
        while task * STORED < tokens:
            for t in range(task * STORED, min(tokens, task * STORED + STORED)):
                page, slot = divmod(load_int(writes + 8 * t), page_size)
                for head in range(kv_heads):
                    place = 4 * dims * ((page * kv_heads + head) * page_size + slot)
                    for i in range(dims):
                        store_float(k_pages + place + 4 * i, load_float(k + t * k_stride + 4 * (head * dims + i)))
                        store_float(v_pages + place + 4 * i, load_float(v + t * v_stride + 4 * (head * dims + i)))
            task = take(a)

    return kernel
