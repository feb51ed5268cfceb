"""Native kernels of paged attention.

A task is a few tokens of one row (a query tile) and one or all key heads. A head's *queries* are the tile's query heads
that read it, token-major. For each block of BLOCK keys: scores = queries x keys, softmax within the block, sums =
weights x values; then fold the block into the running result:

    top' = max(top, block_top)    total' = total e^(top - top') + block_total e^(block_top - top')    sums' likewise

Blocks stand at absolute positions and are folded in order, so a token's result does not depend on its tile, its batch
mates, the page size or the threads. (Online softmax: Milakov & Gimelshein 2018; tiling: Dao et al. 2022.) With few
tasks every block becomes a task of its own, which stores its part; `fold_parts` folds them in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import cfunc, njit
from numba.core.ccallback import CFunc

from overdrive.device.cpu.attention_tiles import (
    BLOCK,
    NOTHING,
    PANELS,
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


class Arguments(NamedTuple):
    """What `attend_kernel` and `fold_kernel` get, before the scale of the scores; addresses, bytes and counts.

    window: positions a token sees, 0 for all. tile: tokens of a query tile. heads: key heads of a task. parts: where
    blocks that are tasks of their own leave their results, part_size each; 0 when they are not. direct: whether pages
    consist of panels (`direct_pages`) and are read where they lie; otherwise each block is copied to scratch first.
    """

    q: int
    q_stride: int
    positions: int
    offsets: int
    starts: int
    gaps: int
    table: int
    table_stride: int
    k_pages: int
    v_pages: int
    out: int
    rows: int
    kv_heads: int
    group: int
    page_size: int
    window: int
    tile: int
    scratch: int
    scratch_size: int
    parts: int
    part_size: int
    heads: int
    direct: int


FIELDS = len(Arguments._fields)


class Tile(NamedTuple):
    """Tokens `first .. stop` of a row: `n` queries of each key head, which see no position before `lowest`, beyond
    `highest` or in `gap .. gap_end`, and so only blocks `start .. skip` and `resume .. after`, `blocks` in number.

    pages: the row's page table. height: n rounded up to whole tiles of rows.
    """

    first: int
    stop: int
    n: int
    height: int
    start: int
    skip: int
    resume: int
    blocks: int
    lowest: int
    highest: int
    gap: int
    gap_end: int
    pages: int


def direct_pages(page_size: int, dims: int) -> bool:
    """Whether pages are kept as panels: they hold whole panels of keys, and rows of values whole tiles."""
    return page_size % LANES == 0 and dims == padded(dims)


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of a task's scratch, for `queries` queries (a multiple of TALL) of `dims` each.

    scratch: [places][and the next][offsets of keys][queries][scores][keys][values][part][running part]
    part: [tops][totals][sums]
    """

    dims: int
    queries: int

    @property
    def part(self) -> int:
        return 4 * self.queries * (2 + padded(self.dims))

    @property
    def scratch(self) -> int:
        copies = 16 * PANELS + 8 * BLOCK + 4 * (2 * BLOCK * self.dims + padded(self.dims))
        return -(-(copies + 4 * self.queries * (self.dims + BLOCK) + 2 * self.part) // 64) * 64


@njit
def make_tile(c, row, first, end):
    """The query tile that begins with token `first` of a row whose last token is before `end`."""
    stop = min(end, first + c.tile)
    low = high = load_int(c.positions + 8 * first)
    for t in range(first, stop):
        low, high = min(low, load_int(c.positions + 8 * t)), max(high, load_int(c.positions + 8 * t))
    lowest = load_int(c.starts + 8 * row)
    start = (max(lowest, low - c.window + 1) if c.window > 0 else lowest) // BLOCK
    gap, gap_end = load_int(c.gaps + 16 * row), load_int(c.gaps + 16 * row + 8)
    skip = max(start, (gap + BLOCK - 1) // BLOCK)
    resume = max(skip, gap_end // BLOCK)
    blocks = high // BLOCK + 1 - resume + skip - start
    n = (stop - first) * c.group
    height = (n + TALL - 1) // TALL * TALL
    pages = c.table + row * c.table_stride
    return Tile(first, stop, n, height, start, skip, resume, blocks, lowest, high, gap, gap_end, pages)


@njit(inline="always")
def nth_block(tile, index):
    """The block that a tile sees as its `index`-th, counted from 0."""
    block = tile.start + index
    return block if block < tile.skip else block + tile.resume - tile.skip


@njit
def key_offset(c, tile, line, position, head):
    """Byte offset of a position's key and value in the pages, if they lie one after the other. line: bytes of a key."""
    page, slot = divmod(position, c.page_size)
    return ((load_int32(tile.pages + 4 * page) * c.kv_heads + head) * c.page_size + slot) * line


@njit
def find_panels(c, tile, line, block, head, places):
    """Byte offsets of a block's panels in direct pages; past the tile's last key, those of the panel that holds it."""
    for panel in range(PANELS):
        position = block * BLOCK + panel * LANES
        last = tile.highest // LANES * LANES
        store_int(places + 8 * panel, key_offset(c, tile, line, min(position, last), head))


@njit(inline="always")
def copy_block(dims, c, tile, block, head, offsets, count, keys, values):
    """A block of pages of any size as panels in scratch; whole panels of keys, the last key again past `count`."""
    whole = (count + WIDE * LANES - 1) // (WIDE * LANES) * (WIDE * LANES)
    for i in range(whole):
        position = block * BLOCK + min(i, count - 1)
        store_int(offsets + 8 * i, key_offset(c, tile, 4 * dims, position, head))
    gather_keys(dims, c.k_pages, offsets, whole // LANES, keys)
    gather_values(dims, c.v_pages, offsets, count, values)
    for column in range(dims - dims % LANES, dims):  # what does not fill 16 lanes
        for i in range(whole):
            place = load_int(offsets + 8 * i) + 4 * column
            panel, lane = divmod(i, LANES)
            store_float(keys + 4 * ((panel * dims + column) * LANES + lane), load_float(c.k_pages + place))
            store_float(values + 4 * (i * dims + column), load_float(c.v_pages + place))


@njit
def hide_gap(tile, first, scores):
    """No query sees the keys of a block that lie in the gap; the block's first key stands at position `first`."""
    for r in range(tile.n):
        for key in range(max(0, tile.gap - first), min(BLOCK, tile.gap_end - first)):
            store_float(scores + 4 * (BLOCK * r + key), -np.inf)


@njit(inline="always")
def attend_block(dims, width, c, tile, block, k_base, v_base, places, ahead, queries, scores, part):
    """Top, total and sums of the tile's queries over one block of keys, into `part`.

    places: of its panels from k_base and v_base on. ahead: of the next block's, which are asked for meanwhile.
    """
    first = block * BLOCK
    count = min(BLOCK, tile.highest + 1 - first)
    strips = (count + WIDE * LANES - 1) // (WIDE * LANES)
    for r in range(0, tile.n, TALL):
        height, rows = tile_height(tile.n - r), queries + 4 * dims * r
        score_tile(dims, height, rows, k_base, places, ahead, strips, scores + 4 * BLOCK * r)
    if tile.gap < first + count and tile.gap_end > first:
        hide_gap(tile, first, scores)
    for r in range(tile.n):
        position = load_int(c.positions + 8 * (tile.first + r // c.group)) - first
        lowest = max(tile.lowest - first, position - c.window + 1) if c.window > 0 else tile.lowest - first
        soften(dims, scores + 4 * BLOCK * r, lowest, position, part + 4 * r, part + 4 * (tile.height + r))
    for r in range(0, tile.n, TALL):
        height, sums = tile_height(tile.n - r), part + 8 * tile.height + 4 * width * r
        weigh_tile(dims, height, scores + 4 * BLOCK * r, v_base, places, ahead, count, sums)


@njit
def copy_queries(dims, c, tile, head, scale, queries):
    """The tile's queries of one key head, scaled, row-major."""
    for r in range(tile.n):
        source = c.q + (tile.first + r // c.group) * c.q_stride + 4 * dims * (head * c.group + r % c.group)
        for i in range(dims):
            store_float(queries + 4 * (r * dims + i), load_float(source + 4 * i) * scale)


@njit
def begin(width, tile, running):
    """A running part that has seen no key."""
    for r in range(tile.n):
        store_float(running + 4 * r, NOTHING)
        store_float(running + 4 * (tile.height + r), 0.0)
        for i in range(width):
            store_float(running + 4 * (2 * tile.height + r * width + i), 0.0)


@njit(inline="always")
def fold_all(dims, width, tile, running, part):
    for r in range(tile.n):
        sums = 4 * (2 * tile.height + r * width)
        top, total = 4 * r, 4 * (tile.height + r)
        fold(dims, running + top, running + total, running + sums, part + top, part + total, part + sums)


@njit(inline="always")
def finish_all(dims, width, c, tile, head, running):
    for r in range(tile.n):
        query = (tile.first + r // c.group) * c.kv_heads * c.group + head * c.group + r % c.group
        sums = running + 4 * (2 * tile.height + r * width)
        finish(dims, running + 4 * (tile.height + r), sums, c.out + 4 * dims * query)


@njit(inline="always")
def attend_task(dims, width, c, tile, scratch, scale, task, first_head, first, blocks):
    """Some key heads over `blocks` blocks from the tile's `first` on, one head after the other; each block's panels are
    found one block ahead."""
    capacity = (c.tile * c.group + TALL - 1) // TALL * TALL
    offsets = scratch + 16 * PANELS
    queries = offsets + 8 * BLOCK
    scores = queries + 4 * dims * capacity
    keys = scores + 4 * BLOCK * capacity
    values = keys + 4 * BLOCK * dims
    part = values + 4 * BLOCK * dims + 4 * width
    running = part + c.part_size
    k_base, v_base = (c.k_pages, c.v_pages) if c.direct else (keys, values)
    for panel in range(2 * PANELS):  # where copies stand
        store_int(scratch + 8 * panel, panel % PANELS * 4 * LANES * dims)
    if c.direct:
        find_panels(c, tile, 4 * dims, nth_block(tile, first), first_head, scratch)
    for step in range(c.heads * blocks):
        head, number = first_head + step // blocks, first + step % blocks
        block = nth_block(tile, number)
        places = scratch + step % 2 * 8 * PANELS
        ahead = places
        if c.direct and step + 1 < c.heads * blocks:
            ahead = scratch + (step + 1) % 2 * 8 * PANELS
            next_head, next_block = first_head + (step + 1) // blocks, nth_block(tile, first + (step + 1) % blocks)
            find_panels(c, tile, 4 * dims, next_block, next_head, ahead)
        if not c.direct:
            count = min(BLOCK, tile.highest + 1 - block * BLOCK)
            copy_block(dims, c, tile, block, head, offsets, count, keys, values)
        if number == first:
            copy_queries(dims, c, tile, head, scale, queries)
            begin(width, tile, running)
        place = c.parts + task * c.part_size if c.parts else part
        attend_block(dims, width, c, tile, block, k_base, v_base, places, ahead, queries, scores, place)
        if not c.parts:
            fold_all(dims, width, tile, running, part)
            if number + 1 == first + blocks:
                finish_all(dims, width, c, tile, head, running)


def attend_kernel(dims: int) -> CFunc:
    """Attention of head width `dims`. With `parts` every block is a task that stores its part there."""
    width, source = padded(dims), SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018  (makes the source part of the cache key)
        c = Arguments(*load_ints(a + 8, FIELDS))
        scale = load_double(a + 8 + 8 * FIELDS)
        scratch = c.scratch + thread * c.scratch_size
        task, seen = take(a), 0
        for row in range(c.rows):
            end = load_int(c.offsets + 8 * row + 8)
            for first in range(load_int(c.offsets + 8 * row), end, c.tile):
                tile = make_tile(c, row, first, end)
                pieces, blocks = (tile.blocks, 1) if c.parts else (1, tile.blocks)
                tasks = c.kv_heads // c.heads * pieces
                while task < seen + tasks:
                    group, piece = divmod(task - seen, pieces)
                    attend_task(dims, width, c, tile, scratch, scale, task, group * c.heads, piece, blocks)
                    task = take(a)
                seen += tasks

    return kernel


def fold_kernel(dims: int) -> CFunc:
    """Folds the parts that `attend_kernel` stored, a query tile and key head at a time; the same arguments."""
    width, source = padded(dims), SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        c = Arguments(*load_ints(a + 8, FIELDS))
        running = c.scratch + thread * c.scratch_size
        task, number, seen = take(a), 0, 0
        for row in range(c.rows):
            end = load_int(c.offsets + 8 * row + 8)
            for first in range(load_int(c.offsets + 8 * row), end, c.tile):
                tile = make_tile(c, row, first, end)
                for head in range(c.kv_heads):
                    if number == task:
                        begin(width, tile, running)
                        for piece in range(tile.blocks):
                            part = c.parts + (seen + head * tile.blocks + piece) * c.part_size
                            fold_all(dims, width, tile, running, part)
                        finish_all(dims, width, c, tile, head, running)
                        task = take(a)
                    number += 1
                seen += c.kv_heads * tile.blocks

    return kernel


def store_kernel(dims: int) -> CFunc:
    """Writes keys and values of tokens to their places in the pages."""
    source = SOURCE

    @cfunc("void(int64, int64)", cache=True, error_model="numpy")
    def kernel(a, thread):
        source  # noqa: B018
        k, v, k_stride, v_stride, writes, tokens, k_pages, v_pages, kv_heads, page_size, direct = load_ints(a + 8, 11)
        task = take(a)
        while task * STORED < tokens:
            for t in range(task * STORED, min(tokens, task * STORED + STORED)):
                page, slot = divmod(load_int(writes + 8 * t), page_size)
                # In a panel of keys the sixteen numbers of a column lie together.
                start, step = (slot // LANES * LANES * dims + slot % LANES, LANES) if direct else (slot * dims, 1)
                for head in range(kv_heads):
                    base = 4 * dims * page_size * (page * kv_heads + head)
                    for i in range(dims):
                        element = 4 * (head * dims + i)
                        store_float(k_pages + base + 4 * (start + i * step), load_float(k + t * k_stride + element))
                        store_float(v_pages + base + 4 * (slot * dims + i), load_float(v + t * v_stride + element))
            task = take(a)

    return kernel
