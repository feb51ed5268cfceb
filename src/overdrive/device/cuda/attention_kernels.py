"""Triton kernels of paged attention. Read keys and values where they lie; know tensors and positions, nothing else.

Row lengths, page tables and query offsets are read on the device, so a launch depends on static shapes alone. The
running softmax is that of FlashAttention (Dao et al. 2022, 2023), in base 2 and float32; splitting a row's keys over
programs and combining the parts is Flash-Decoding (Dao et al. 2023), here by whichever program is the last to finish.

Imported only where Triton is: on a CUDA device, or under its interpreter.

Names of compile-time constants: GROUP query heads to a key head; PAGE places of a page; D width of a head, WIDTH the
power of two that holds it; KEYS places of a tile of keys; ROWS of a tile of queries, which are tokens x GROUP heads.
EARLY: set up while the kernel before still runs (programmatic dependent launch), and wait for its end to begin.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from overdrive.device.cuda.attention_tile_kernels import attend_new, load_rotated, weigh

LOWEST = tl.constexpr(-1e30)  # below every score, and finite: LOWEST - LOWEST is 0, not NaN
COMBINED = tl.constexpr(8192)  # numbers that a program holds at once to combine: 64 registers of each of 128 threads
PARTS = tl.constexpr(8)  # of a query, among those

# What varies without need of a binary of its own: plain numbers, and where slices of index tensors begin.
_NUMBERS = ["table_stride", "window", "queries", "splits", "least", "rows"]
_INDICES = ["table", "offsets", "positions", "starts", "gaps", "writes"]


@triton.jit
def _await_previous(EARLY: tl.constexpr):
    """With EARLY: nothing is read or written before the kernel before has ended; the one after may be set up."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _load_row(offsets, starts, gaps, row):
    """First token and number of tokens of a row, and what it does not see: (begin, count, start, gap, gap_end)."""
    begin = tl.load(offsets + row).to(tl.int32)
    count = tl.load(offsets + row + 1).to(tl.int32) - begin
    gap, gap_end = tl.load(gaps + 2 * row).to(tl.int32), tl.load(gaps + 2 * row + 1).to(tl.int32)
    return begin, count, tl.load(starts + row).to(tl.int32), gap, gap_end


@triton.jit
def _tiles(low, end, gap, gap_end, KEYS: tl.constexpr):
    """Tiles that hold visible places of low .. end - 1 outside gap .. gap_end - 1: (first, skip, jump, count).

    The i-th of `count` tiles is first + i, and `jump` more from `skip` on; without a gap, jump is 0.
    """
    first = low // KEYS
    skip = tl.maximum(first, (gap + KEYS - 1) // KEYS)
    jump = tl.maximum(skip, gap_end // KEYS) - skip
    return first, skip, jump, (end + KEYS - 1) // KEYS - first - jump


@triton.jit
def _nth(i, first, skip, jump):
    """The i-th of the tiles that `_tiles` counts."""
    tile = first + i
    return tl.where(tile >= skip, tile + jump, tile)


@triton.jit
def _nth_beside(i, first, skip, jump, clear, whole):
    """The same without those that every query sees in full, `whole` of them from `clear` on."""
    tile = _nth(i, first, skip, jump)
    return tl.where(tile >= clear, tile + whole, tile)


@triton.jit
def _share(tiles, splits, least):
    """Tiles of a program of `splits`, and how many of them have any: the first one always has a part to give.

    least: tiles that are not worth sharing.
    """
    share = tl.maximum((tiles + splits - 1) // splits, least)
    return share, tl.maximum((tiles + share - 1) // share, 1)


@triton.jit
def _load_queries(q, q_stride, tokens, heads, valid, D: tl.constexpr, WIDTH: tl.constexpr):
    """[ROWS, WIDTH] of q [T, Hq, D], zero where not valid."""
    dims = tl.arange(0, WIDTH)
    places = tokens.to(tl.int64) * q_stride + heads * D
    return tl.load(q + places[:, None] + dims[None, :], mask=valid[:, None] & (dims < D)[None, :], other=0.0)


@triton.jit
def _load_tile(pages, places, seen, MASKED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """[KEYS, WIDTH] of keys or values; what is not seen is zero, for a stale NaN times zero would be NaN."""
    dims = tl.arange(0, WIDTH)
    pointers = pages + places[:, None] + dims[None, :]
    if MASKED:
        if D == WIDTH:
            tile = tl.load(pointers, mask=seen[:, None], other=0.0)
        else:
            tile = tl.load(pointers, mask=seen[:, None] & (dims < D)[None, :], other=0.0)
    else:
        if D == WIDTH:
            tile = tl.load(pointers)
        else:
            tile = tl.load(pointers, mask=(dims < D)[None, :], other=0.0)
    return tile


@triton.jit
def _seen(tile, start, length, gap, gap_end, KEYS: tl.constexpr):
    """Places of a tile, and whether any query may see them."""
    keys = tile * KEYS + tl.arange(0, KEYS)
    return keys, (keys >= start) & (keys < length) & ((keys < gap) | (keys >= gap_end))


@triton.jit
def _load_pages(table, tile, start, length, gap, gap_end, PAGE: tl.constexpr, KEYS: tl.constexpr):
    """Pages [KEYS] of a tile's places, 0 of those that nobody sees. The tile may lie behind the row.

    Loops look up the next tile's while this one is on its way: its keys and values are then one load away from numbers
    that are known, not two, and only so does the compiler have several tiles of them under way.
    """
    keys, seen = _seen(tile, start, length, gap, gap_end, KEYS)
    if PAGE >= KEYS:
        page = tl.load(table + tile * KEYS // PAGE, mask=tile * KEYS < length, other=0) + tl.zeros_like(keys)
    else:
        page = tl.load(table + keys // PAGE, mask=seen, other=0)
    return page


@triton.jit
def _attend_tile(
    sums, total, top, queries, at, k_pages, v_pages, page, tile, start, length, gap, gap_end, window, scale,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr,
    KEYS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One tile of keys folded into the running softmax: sums [ROWS, WIDTH], total and top [ROWS].

    queries [ROWS, WIDTH] stand at positions `at` [ROWS]; k_pages and v_pages begin at the key head; page [KEYS]: of the
    tile's places. Without MASKED every place of the tile is visible to every query. scale: of scores, log2(e) included.
    """
    keys, seen = _seen(tile, start, length, gap, gap_end, KEYS)
    places = page.to(tl.int64) * (KV_HEADS * PAGE * D) + keys % PAGE * D
    k = _load_tile(k_pages, places, seen, MASKED, D, WIDTH)
    scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        visible = (keys[None, :] <= at[:, None]) & seen[None, :]
        if WINDOWED:
            visible = visible & (keys[None, :] > at[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    weights, shrink, total, top = weigh(scores, total, top)
    v = _load_tile(v_pages, places, seen, MASKED, D, WIDTH)
    sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
    return sums, total, top


@triton.jit
def _finish(
    out, part_sums, part_totals, part_tops, arrivals, sums, total, top, first, rows, place, counter, head, split,
    splits, used,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The running softmax of a tile as results, or as part `split` of `used`: the last to come combines.

    Without SPLIT there is one part, and no code for more.

    The first `rows` queries of the tile count. The i-th is of token first + i // GROUP and head
    head * GROUP + i % GROUP; its parts begin at ((place + i // GROUP) * HEADS + that head) * splits. arrivals[counter]
    is how many parts of the tile stand there, 0 between launches.
    """
    index, dims = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    valid = index < rows
    heads = head * GROUP + index % GROUP
    mask = valid[:, None] & (dims < D)[None, :]
    shared = False
    if SPLIT:
        shared = used > 1
    if shared:
        part = ((place + index // GROUP) * HEADS + heads) * splits + split
        tl.store(part_totals + part, total, mask=valid)
        tl.store(part_tops + part, top, mask=valid)
        tl.store(part_sums + part.to(tl.int64)[:, None] * D + dims[None, :], sums, mask=mask)
        tl.debug_barrier()  # what all threads stored stands before the one that counts it is released
        if tl.atomic_add(arrivals + counter, 1, sem="acq_rel", scope="gpu") == used - 1:
            tl.store(arrivals + counter, 0)
            _combine(
                out, part_sums, part_totals, part_tops, first, rows, place, head, splits, used,
                GROUP, HEADS, D, WIDTH, ROWS,
            )  # fmt: skip
    else:
        places = (first + index // GROUP).to(tl.int64) * (HEADS * D) + heads * D
        attended = sums / tl.maximum(total, 1e-30)[:, None]
        tl.store(out + places[:, None] + dims[None, :], attended.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _combine(
    out, part_sums, part_totals, part_tops, first, rows, place, head, splits, used,
    GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """All parts of a tile as its results, in the order of the parts, whoever does it. Arguments as in `_finish`.

    Others wrote them in this launch: they are read past the first-level cache.
    """
    TOGETHER: tl.constexpr = COMBINED // (PARTS * WIDTH) if COMBINED // (PARTS * WIDTH) < ROWS else ROWS
    dims = tl.arange(0, WIDTH)
    for begin in tl.range(0, rows, TOGETHER):
        index = begin + tl.arange(0, TOGETHER)
        valid = index < rows
        heads = head * GROUP + index % GROUP
        first_part = ((place + index // GROUP) * HEADS + heads) * splits
        sums = tl.zeros((TOGETHER, WIDTH), tl.float32)
        total = tl.zeros((TOGETHER,), tl.float32)
        top = tl.full((TOGETHER,), LOWEST, tl.float32)
        for begin_part in tl.range(0, used, PARTS):
            number = begin_part + tl.arange(0, PARTS)
            part = first_part[None, :] + number[:, None]  # [PARTS, TOGETHER]
            stands = valid[None, :] & (number < used)[:, None]
            tops = tl.load(part_tops + part, mask=stands, other=LOWEST, cache_modifier=".cg")
            totals = tl.load(part_totals + part, mask=stands, other=0.0, cache_modifier=".cg")
            pointers = part_sums + part.to(tl.int64)[:, :, None] * D + dims[None, None, :]
            mask = stands[:, :, None] & (dims < D)[None, None, :]
            terms = tl.load(pointers, mask=mask, other=0.0, cache_modifier=".cg")
            new_top = tl.maximum(top, tl.max(tops, 0))
            shares = tl.exp2(tops - new_top[None, :])
            shrink = tl.exp2(top - new_top)
            sums = sums * shrink[:, None] + tl.sum(terms * shares[:, :, None], 0)
            total = total * shrink + tl.sum(totals * shares, 0)
            top = new_top
        places = (first + index // GROUP).to(tl.int64) * (HEADS * D) + heads * D
        attended = sums / tl.maximum(total, 1e-30)[:, None]
        mask = valid[:, None] & (dims < D)[None, :]
        tl.store(out + places[:, None] + dims[None, :], attended.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_INDICES)
def decode_kernel(
    out, q, q_stride, k_pages, v_pages, table, table_stride, offsets, positions, starts, gaps,
    part_sums, part_totals, part_tops, arrivals, window, queries, splits, scale, least,
    k, v, k_stride, v_stride, cos, sin, writes, NEW: tl.constexpr,
    EARLY: tl.constexpr, SPLIT: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows of 1 .. `queries` tokens over the grid (R, KV_HEADS, splits): out [T, Hq * D], or parts of it.

    Program (row, head, s) attends to the s-th share of the row's tiles, `least` at least. Query i of a row's tile is
    token i // GROUP of the row and head `head * GROUP + i % GROUP`. arrivals [R, KV_HEADS] count finished shares.

    NEW: 0 where keys and values of the row's own tokens stand in the pages. Otherwise at least `queries`: q and k are
    yet to be rotated, k and v to be stored, and the row's own tokens are one more tile, behind those of the pages.
    """
    _await_previous(EARLY)
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, count, start, gap, gap_end = _load_row(offsets, starts, gaps, row)
    if (count == 0) | (count > queries):
        return
    length = tl.load(positions + begin + count - 1).to(tl.int32) + 1
    index = tl.arange(0, ROWS)
    token, heads = index // GROUP, head * GROUP + index % GROUP
    valid = token < count
    at = length - count + token
    low, stored, more = start, length, 0
    if WINDOWED:
        low = tl.maximum(start, length - count + 1 - window)
    if NEW > 0:
        stored, more = length - count, 1
    first, skip, jump, tiles = _tiles(low, stored, gap, gap_end, KEYS)
    share, used = _share(tiles + more, splits, least)
    if split >= used:
        return
    if NEW > 0:
        tile_queries = load_rotated(q, (begin + token).to(tl.int64) * q_stride + heads * D, at, valid, cos, sin, D)
    else:
        tile_queries = _load_queries(q, q_stride, begin + token, heads, valid, D, WIDTH)
    row_table = table + row.to(tl.int64) * table_stride
    k_head, v_head = k_pages + head * (PAGE * D), v_pages + head * (PAGE * D)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    top = tl.full((ROWS,), LOWEST, tl.float32)
    begin_share, end_share = split * share, tl.minimum(split * share + share, tiles)
    tile = _nth(begin_share, first, skip, jump)
    page = _load_pages(row_table, tile, start, stored, gap, gap_end, PAGE, KEYS)
    for i in tl.range(begin_share, end_share):
        next_tile = _nth(i + 1, first, skip, jump)
        next_page = _load_pages(row_table, next_tile, start, stored, gap, gap_end, PAGE, KEYS)
        sums, total, top = _attend_tile(
            sums, total, top, tile_queries, at, k_head, v_head, page, tile, start, stored, gap, gap_end,
            window, scale, True, WINDOWED, KV_HEADS, PAGE, KEYS, D, WIDTH,
        )  # fmt: skip
        tile, page = next_tile, next_page
    if NEW > 0:  # noqa: SIM102  without it nothing of what follows is compiled
        if split == used - 1:
            sums, total, top = attend_new(
                sums, total, top, tile_queries, at, k, v, k_stride, v_stride, cos, sin, writes, k_head, v_head, begin,
                count, length - count, head, window, scale, WINDOWED, KV_HEADS, PAGE, D, NEW,
            )  # fmt: skip
    _finish(
        out, part_sums, part_totals, part_tops, arrivals, sums, total, top, begin, count * GROUP, row * queries,
        row * KV_HEADS + head, head, split, splits, used, SPLIT, GROUP, KV_HEADS * GROUP, D, WIDTH, ROWS,
    )  # fmt: skip


@triton.jit
def _nth_tile(offsets, rows, number_from_last, queries, TOKENS: tl.constexpr, MOST_ROWS: tl.constexpr):
    """(row, tile of the row) among the tiles of rows of more than `queries` tokens, counted from the last one.

    Row -1 where there are not so many.
    """
    row = tl.arange(0, MOST_ROWS)
    begins = tl.load(offsets + row, mask=row < rows, other=0)
    counts = (tl.load(offsets + row + 1, mask=row < rows, other=0) - begins).to(tl.int32)
    tiles = tl.where(counts > queries, (counts + TOKENS - 1) // TOKENS, 0)
    ends = tl.cumsum(tiles, 0)
    number = tl.sum(tiles, 0) - 1 - number_from_last
    before = ends <= number
    found = tl.where(number >= 0, tl.sum(before.to(tl.int32), 0), -1)
    return found, number - tl.sum(tl.where(before, tiles, 0), 0)


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_INDICES)
def prefill_kernel(
    out, q, q_stride, k_pages, v_pages, table, table_stride, offsets, positions, starts, gaps,
    part_sums, part_totals, part_tops, arrivals, window, queries, splits, scale, rows,
    EARLY: tl.constexpr, SPLIT: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
    MOST_ROWS: tl.constexpr,
):  # fmt: skip
    """Rows of more than `queries` tokens over the grid (KV_HEADS, tiles, splits): out [T, Hq * D], or parts of it.

    A tile is ROWS // GROUP tokens with the GROUP heads of a key head: few positions, so that few keys are masked. The
    last tiles of a row see most keys and start first. arrivals [tiles, KV_HEADS] count finished shares.
    """
    _await_previous(EARLY)
    head, split = tl.program_id(0), tl.program_id(2)
    TOKENS: tl.constexpr = ROWS // GROUP
    row, nth = _nth_tile(offsets, rows, tl.program_id(1), queries, TOKENS, MOST_ROWS)
    if row < 0:
        return
    begin, count, start, gap, gap_end = _load_row(offsets, starts, gaps, row)
    context = tl.load(positions + begin).to(tl.int32)
    index = tl.arange(0, ROWS)
    token, heads = nth * TOKENS + index // GROUP, head * GROUP + index % GROUP
    valid = (index < TOKENS * GROUP) & (token < count)
    nearest = context + nth * TOKENS  # positions of the tile's first and last query
    farthest = context + tl.minimum(count, nth * TOKENS + TOKENS) - 1
    low, clear = start, tl.maximum(start, gap_end)
    if WINDOWED:
        low = tl.maximum(start, nearest + 1 - window)
        clear = tl.maximum(clear, farthest + 1 - window)
    first, skip, jump, tiles = _tiles(low, farthest + 1, gap, gap_end, KEYS)
    # Tiles that every query sees in full, `whole` of them from `clear` on, need no mask and come first.
    clear = tl.maximum((clear + KEYS - 1) // KEYS, skip + jump)
    whole = tl.maximum((nearest + 1) // KEYS - clear, 0)
    share, used = _share(tiles, splits, 1)
    if split >= used:
        return
    begin_share, end_share = split * share, tl.minimum(split * share + share, tiles)
    tile_queries = _load_queries(q, q_stride, begin + token, heads, valid, D, WIDTH)
    row_table = table + row.to(tl.int64) * table_stride
    k_head, v_head = k_pages + head * (PAGE * D), v_pages + head * (PAGE * D)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    top = tl.full((ROWS,), LOWEST, tl.float32)
    page = _load_pages(row_table, clear + begin_share, start, farthest + 1, gap, gap_end, PAGE, KEYS)
    for i in tl.range(begin_share, tl.minimum(end_share, whole)):
        next_page = _load_pages(row_table, clear + i + 1, start, farthest + 1, gap, gap_end, PAGE, KEYS)
        sums, total, top = _attend_tile(
            sums, total, top, tile_queries, context + token, k_head, v_head, page, clear + i, start,
            farthest + 1, gap, gap_end, window, scale, False, WINDOWED, KV_HEADS, PAGE, KEYS, D, WIDTH,
        )  # fmt: skip
        page = next_page
    begin_rest = tl.maximum(begin_share, whole)
    tile = _nth_beside(begin_rest - whole, first, skip, jump, clear, whole)
    page = _load_pages(row_table, tile, start, farthest + 1, gap, gap_end, PAGE, KEYS)
    for i in tl.range(begin_rest, end_share):
        next_tile = _nth_beside(i + 1 - whole, first, skip, jump, clear, whole)
        next_page = _load_pages(row_table, next_tile, start, farthest + 1, gap, gap_end, PAGE, KEYS)
        sums, total, top = _attend_tile(
            sums, total, top, tile_queries, context + token, k_head, v_head, page, tile, start,
            farthest + 1, gap, gap_end, window, scale, True, WINDOWED, KV_HEADS, PAGE, KEYS, D, WIDTH,
        )  # fmt: skip
        tile, page = next_tile, next_page
    first_token = begin + nth * TOKENS
    _finish(
        out, part_sums, part_totals, part_tops, arrivals, sums, total, top, first_token,
        tl.minimum(count - nth * TOKENS, TOKENS) * GROUP, first_token, tl.program_id(1) * KV_HEADS + head, head, split,
        splits, used, SPLIT, GROUP, KV_HEADS * GROUP, D, WIDTH, ROWS,
    )  # fmt: skip
