"""Triton kernels of paged attention. Read keys and values where they lie; know tensors and positions, nothing else.

Row lengths, page tables and query offsets are read on the device, so a launch depends on static shapes alone. The
running softmax is that of FlashAttention (Dao et al. 2022, 2023), in base 2 and float32; splitting a row's keys over
programs and combining the parts is Flash-Decoding (Dao et al. 2023).

Imported only where Triton is: on a CUDA device, or under its interpreter.

Names of compile-time constants: GROUP query heads to a key head; PAGE places of a page; D width of a head, WIDTH the
power of two that holds it; KEYS places of a tile of keys; ROWS of a tile of queries, which are tokens x GROUP heads.
EARLY: set up while the kernel before still runs (programmatic dependent launch), and wait for its end to begin.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOWEST = tl.constexpr(-1e30)  # below every score, and finite: LOWEST - LOWEST is 0, not NaN

# What varies without need of a binary of its own: plain numbers, and where slices of index tensors begin.
_NUMBERS = ["table_stride", "window", "queries", "splits", "rows"]
_INDICES = ["table", "offsets", "positions", "starts", "gaps", "owners"]


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
def _attend_tile(
    sums, total, top, queries, at, k_pages, v_pages, table, tile, start, length, gap, gap_end, window, scale,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr,
    KEYS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One tile of keys folded into the running softmax: sums [ROWS, WIDTH], total and top [ROWS].

    queries [ROWS, WIDTH] stand at positions `at` [ROWS]; pages begin at the key head. Without MASKED every place of the
    tile is visible to every query. scale: of scores, log2(e) included.
    """
    keys = tile * KEYS + tl.arange(0, KEYS)
    seen = (keys >= start) & (keys < length) & ((keys < gap) | (keys >= gap_end))
    if PAGE >= KEYS:
        page = tl.load(table + tile * KEYS // PAGE).to(tl.int64) + tl.zeros_like(keys)
    elif MASKED:
        page = tl.load(table + keys // PAGE, mask=seen, other=0).to(tl.int64)
    else:
        page = tl.load(table + keys // PAGE).to(tl.int64)
    places = page * (KV_HEADS * PAGE * D) + keys % PAGE * D
    k = _load_tile(k_pages, places, seen, MASKED, D, WIDTH)
    scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        visible = (keys[None, :] <= at[:, None]) & seen[None, :]
        if WINDOWED:
            visible = visible & (keys[None, :] > at[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    v = _load_tile(v_pages, places, seen, MASKED, D, WIDTH)
    sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
    return sums, total * shrink + tl.sum(weights, 1), new_top


@triton.jit
def _finish(
    out, part_sums, part_totals, part_tops, sums, total, top, token, heads, valid, part, worked,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The running softmax as the results of tokens `token` [ROWS] and `heads` [ROWS], or with SPLIT as parts `part`.

    A share without tiles, not `worked`, leaves total 0 and its sums as an earlier launch left them.
    """
    dims = tl.arange(0, WIDTH)
    mask = valid[:, None] & (dims < D)[None, :]
    if SPLIT:
        tl.store(part_totals + part, total, mask=valid)
        tl.store(part_tops + part, top, mask=valid)
        if worked:
            tl.store(part_sums + part.to(tl.int64)[:, None] * D + dims[None, :], sums, mask=mask)
    else:
        places = token.to(tl.int64) * (HEADS * D) + heads * D
        attended = sums / tl.maximum(total, 1e-30)[:, None]
        tl.store(out + places[:, None] + dims[None, :], attended.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_INDICES)
def decode_kernel(
    out, q, q_stride, k_pages, v_pages, table, table_stride, offsets, positions, starts, gaps,
    part_sums, part_totals, part_tops, window, queries, splits, scale,
    EARLY: tl.constexpr, SPLIT: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows of 1 .. `queries` tokens over the grid (R, KV_HEADS, splits): out [T, Hq * D], or parts of it.

    Program (row, head, s) attends to the s-th share of the row's tiles. Query i of a row's tile is token i // GROUP of
    the row and head `head * GROUP + i % GROUP`. With SPLIT it goes to part
    ((row * queries + token) * Hq + head) * splits + s.
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
    tile_queries = _load_queries(q, q_stride, begin + token, heads, valid, D, WIDTH)
    low = start
    if WINDOWED:
        low = tl.maximum(start, length - count + 1 - window)
    first, skip, jump, tiles = _tiles(low, length, gap, gap_end, KEYS)
    share = (tiles + splits - 1) // splits
    row_table = table + row.to(tl.int64) * table_stride
    k_head, v_head = k_pages + head * (PAGE * D), v_pages + head * (PAGE * D)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    top = tl.full((ROWS,), LOWEST, tl.float32)
    for i in tl.range(split * share, tl.minimum(split * share + share, tiles)):
        tile = first + i
        tile = tl.where(tile >= skip, tile + jump, tile)
        sums, total, top = _attend_tile(
            sums, total, top, tile_queries, at, k_head, v_head, row_table, tile, start, length, gap, gap_end,
            window, scale, True, WINDOWED, KV_HEADS, PAGE, KEYS, D, WIDTH,
        )  # fmt: skip
    part = ((row * queries + token) * (KV_HEADS * GROUP) + heads) * splits + split
    _finish(
        out, part_sums, part_totals, part_tops, sums, total, top, begin + token, heads, valid, part,
        split * share < tiles, SPLIT, KV_HEADS * GROUP, D, WIDTH,
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
    part_sums, part_totals, part_tops, window, queries, splits, scale, rows,
    EARLY: tl.constexpr, SPLIT: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
    MOST_ROWS: tl.constexpr,
):  # fmt: skip
    """Rows of more than `queries` tokens over the grid (KV_HEADS, tiles, splits): out [T, Hq * D], or parts of it.

    A tile is ROWS // GROUP tokens with the GROUP heads of a key head: few positions, so that few keys are masked. The
    last tiles of a row see most keys and start first. With SPLIT a result goes to part (t * Hq + head) * splits + s.
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
    tile_queries = _load_queries(q, q_stride, begin + token, heads, valid, D, WIDTH)
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
    share = (tiles + splits - 1) // splits
    begin_share, end_share = split * share, tl.minimum(split * share + share, tiles)
    row_table = table + row.to(tl.int64) * table_stride
    k_head, v_head = k_pages + head * (PAGE * D), v_pages + head * (PAGE * D)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    top = tl.full((ROWS,), LOWEST, tl.float32)
    for i in tl.range(begin_share, tl.minimum(end_share, whole)):
        sums, total, top = _attend_tile(
            sums, total, top, tile_queries, context + token, k_head, v_head, row_table, clear + i, start,
            farthest + 1, gap, gap_end, window, scale, False, WINDOWED, KV_HEADS, PAGE, KEYS, D, WIDTH,
        )  # fmt: skip
    for i in tl.range(tl.maximum(begin_share, whole), end_share):
        tile = first + i - whole
        tile = tl.where(tile >= skip, tile + jump, tile)
        tile = tl.where(tile >= clear, tile + whole, tile)
        sums, total, top = _attend_tile(
            sums, total, top, tile_queries, context + token, k_head, v_head, row_table, tile, start,
            farthest + 1, gap, gap_end, window, scale, True, WINDOWED, KV_HEADS, PAGE, KEYS, D, WIDTH,
        )  # fmt: skip
    part = ((begin + token) * (KV_HEADS * GROUP) + heads) * splits + split
    _finish(
        out, part_sums, part_totals, part_tops, sums, total, top, begin + token, heads, valid, part,
        begin_share < end_share, SPLIT, KV_HEADS * GROUP, D, WIDTH,
    )  # fmt: skip


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_INDICES)
def combine_kernel(
    out, part_sums, part_totals, part_tops, offsets, owners, queries,
    EARLY: tl.constexpr, LONG: tl.constexpr, SPLITS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Parts as one result each, out [T, HEADS * D].

    Of `decode_kernel`: the grid is (R * queries, HEADS). Of `prefill_kernel`, LONG: (T, HEADS); owners: row of a token.
    """
    _await_previous(EARLY)
    place, head = tl.program_id(0), tl.program_id(1)
    row, t = place // queries, place
    if LONG:
        row = tl.load(owners + place).to(tl.int32)
    begin = tl.load(offsets + row).to(tl.int32)
    count = tl.load(offsets + row + 1).to(tl.int32) - begin
    if LONG:
        meant = count > queries
    else:
        meant = count <= queries
        t = begin + place % queries
    parts = (place * HEADS + head) * SPLITS + tl.arange(0, SPLITS)
    dims = tl.arange(0, WIDTH)
    totals, tops = tl.load(part_totals + parts), tl.load(part_tops + parts)
    rows = part_sums + parts.to(tl.int64)[:, None] * D
    sums = tl.load(rows + dims[None, :], mask=(dims < D)[None, :], other=0.0)
    used = totals > 0  # the sums of other parts are those of an earlier launch
    tops = tl.where(used, tops, LOWEST)
    shares = tl.exp2(tops - tl.max(tops, 0))
    sums = tl.sum(tl.where(used[:, None], sums * shares[:, None], 0.0), 0)
    total = tl.sum(tl.where(used, totals * shares, 0.0), 0)
    attended = (sums / tl.maximum(total, 1e-30)).to(out.dtype.element_ty)
    meant = meant & (t >= begin) & (t < begin + count)  # padding tokens stand behind every row
    tl.store(out + (t.to(tl.int64) * HEADS + head) * D + dims, attended, mask=(dims < D) & meant)
