"""Laws of the attention kernels: what the plain form says in float64, whatever the shape of the batch.

On a CUDA device they run at full size; elsewhere at small shapes in Triton's interpreter, if TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cuda.attention import CudaAttention, SplitSpace, paged_attention, prefill_tiling
from overdrive.errors import OverdriveError
from overdrive.model.ops import Angles, TorchOps
from overdrive.model.rope import RopeConfig, rope_tables
from tests.device.cuda.attention_batches import Row, Shape, expected, fill, make_batch, make_qkv, on
from tests.device.cuda.devices import INTERPRETED

interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
PROCESSORS = 8  # pretended in the interpreter: few rows are split, several are not

MIXED = [Row(0, 1), Row(16, 4), Row(60, 7), Row(63, 2), Row(0, 0), Row(127, 1), Row(100, 8)]
LONG = [Row(30, 40), Row(0, 9), Row(129, 3), Row(0, 0), Row(5, 70), Row(64, 1)]
# Places out of view: before a start, in a gap within a tile, over tiles, up to the row, from before the start.
HIDDEN = [
    *(Row(50, 2, start=1), Row(50, 3, start=50), Row(150, 1, gap=(16, 140)), Row(150, 4, gap=(20, 25))),
    *(Row(200, 2, 1, (64, 200)), Row(70, 1, 3, (0, 66)), Row(130, 20, 1, (16, 128)), Row(66, 30, gap=(1, 66))),
]
# bfloat16 and float16 round the weights of values and the result: 8 and 11 bits, of numbers up to about 4.
TOLERANCE = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def check(
    rows: Sequence[Row],
    heads: Shape,
    page_size: int = 16,
    queries: int = 8,
    padding: int = 3,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    processors: int = PROCESSORS,
) -> None:
    """The kernels' result for these rows is the plain form's, for each real token."""
    pytest.importorskip("triton")
    batch = make_batch(rows, page_size, padding)
    kv, (q, k, v) = fill(batch, heads, page_size, dtype), make_qkv(batch, heads, dtype)
    batch, kv = on(device, batch), PagedKV([kv.k_pages[0].to(device)], [kv.v_pages[0].to(device)], page_size)
    q, k, v = (x.to(device) for x in (q, k, v))
    right = expected(batch, heads, kv, q, k, v)
    space = SplitSpace.allocate([heads], queries, device, processors)
    long_rows = max(row.tokens for row in rows) > queries
    got = CudaAttention(kv, heads, batch, queries, long_rows, space)(0, q, k, v)
    real, error = int(batch.offsets[-1]), TOLERANCE[dtype]
    torch.testing.assert_close(got[:real].double(), right[:real], atol=error, rtol=error)


@interpreted
@pytest.mark.parametrize("page_size", [4, 16, 64])
def test_short_rows_are_as_in_float64(page_size: int) -> None:
    check(MIXED, Shape(4, 2, 64), page_size)
    check(MIXED[1:4], Shape(4, 2, 64, width=21), page_size)


@interpreted
@pytest.mark.parametrize("page_size", [4, 16, 64])
def test_long_and_short_rows_are_as_in_float64(page_size: int) -> None:
    check(LONG, Shape(4, 2, 32), page_size, queries=4)
    check(LONG[:4], Shape(4, 2, 32, width=21), page_size, queries=4)


@interpreted
@pytest.mark.parametrize(("heads", "kv_heads", "dims"), [(2, 2, 128), (8, 1, 32), (3, 1, 64), (4, 2, 80)])
def test_any_head_shape_is_right(heads: int, kv_heads: int, dims: int) -> None:
    check([Row(50, 3), Row(0, 1), Row(20, 12)], Shape(heads, kv_heads, dims), queries=4)


@interpreted
@pytest.mark.parametrize("window", [0, 60])
def test_what_is_out_of_view_is_not_read(window: int) -> None:
    check(HIDDEN, Shape(2, 1, 32, window), queries=4)
    check(HIDDEN[3:5], Shape(2, 1, 32, window), queries=4)  # split


@interpreted
def test_one_row_split_at_any_length_is_right() -> None:
    for length in (1, 31, 32, 33, 64, 255, 257):  # tiles of float32 hold 32 keys: fewer tiles than programs, and more
        check([Row(length - 1, 1)], Shape(2, 1, 32), queries=1, processors=2)


@interpreted
def test_long_rows_split_at_any_length_are_right() -> None:
    for length in (12, 32, 33, 100):
        check([Row(length, 11)], Shape(2, 1, 32), queries=4, padding=0, processors=4)
    check(HIDDEN[-2:], Shape(2, 1, 32), queries=4, processors=16)
    check([Row(70, 9), Row(0, 0), Row(40, 3)], Shape(4, 2, 32, width=25), queries=4, processors=16)


def rotating_is_storing_what_was_rotated(
    rows: Sequence[Row], heads: Shape, dtype: torch.dtype, device: str, processors: int, queries: int = 8
) -> None:
    """Whether the launch that attends stores, or one before it, results and pages are those of rotating beforehand.

    Both leave the same bits in the pages.
    """

    pytest.importorskip("triton")
    batch, space = make_batch(rows, 16, padding=3), SplitSpace.allocate([heads], queries, device, processors)
    filled = fill(batch, heads, 16, dtype)
    batch, real = on(device, batch), int(batch.offsets[-1])
    cos, sin = (x.to(device) for x in rope_tables(RopeConfig(theta=1e4), heads.head_dim, 4000, torch.float32))
    results = []
    for way in ("before", "apart", "folded"):
        kv = PagedKV([filled.k_pages[0].to(device, copy=True)], [filled.v_pages[0].to(device, copy=True)], 16)
        q, k, v = (x.to(device) for x in make_qkv(batch, heads, dtype))
        attention = CudaAttention(kv, heads, batch, queries, False, space)
        attention.fold = way == "folded"
        if way == "before":
            for x in (q, k):
                wide = x.float()
                TorchOps(torch.float32).rope(wide, wide[:, :0], batch.positions, cos, sin)
                x.copy_(wide)
            got = attention(0, q, k, v)
        else:
            got = attention.rotate_and_attend(0, q, k, v, Angles(batch.positions, cos, sin))
        pages = [torch.nan_to_num(x[0], nan=7.0) for x in (kv.k_pages, kv.v_pages)]
        results.append([got[:real], *pages])
    for others in results[1:]:
        for mine, right in zip(others, results[0], strict=True):
            torch.testing.assert_close(mine, right, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    (_, *apart), (_, *folded) = results[1:]
    assert all(map(torch.equal, folded, apart))


@interpreted
@pytest.mark.parametrize("processors", [1, 32])
def test_rotating_on_the_way_is_storing_what_was_rotated(processors: int) -> None:
    rotating_is_storing_what_was_rotated(MIXED[:4], Shape(2, 1, 32), torch.float32, "cpu", processors)
    rotating_is_storing_what_was_rotated(MIXED[1:4], Shape(2, 2, 32, width=21), torch.float16, "cpu", processors)
    rotating_is_storing_what_was_rotated(HIDDEN[:6], Shape(2, 1, 32), torch.float32, "cpu", processors, 4)
    rotating_is_storing_what_was_rotated(HIDDEN[:6], Shape(2, 1, 32, width=1), torch.float32, "cpu", processors, 4)


@pytest.mark.cuda
@pytest.mark.parametrize("processors", [1, 0, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rotating_on_the_way_is_storing_what_was_rotated_on_a_device(processors: int, dtype: torch.dtype) -> None:
    one, many = [Row(3000, 4)], [Row(37 * n % 1500, 1 + n % 8) for n in range(30)]
    for rows in (MIXED, one, many, HIDDEN[:6]):
        for heads in (Shape(32, 8, 128), Shape(16, 2, 64, width=50)):
            rotating_is_storing_what_was_rotated(rows, heads, dtype, "cuda", processors)


@interpreted
def test_half_precision_is_right_within_its_rounding() -> None:  # the interpreter cannot multiply bfloat16
    check([Row(100, 3), Row(20, 12)], Shape(4, 2, 64), queries=4, dtype=torch.float16)


@pytest.mark.parametrize("device", ["cpu"])
def test_padding_is_neither_stored_nor_attended(device: str) -> None:
    heads, rows = Shape(4, 2, 8), [Row(5, 2), Row(0, 0), Row(9, 1), Row(0, 0)]
    plain, padded = make_batch(rows, 4), make_batch(rows, 4, padding=3)
    kv = fill(plain, heads, 4, torch.float64)
    kv.k_pages[0][0] = kv.v_pages[0][0] = 0
    q, k, v = make_qkv(padded, heads, torch.float64)
    real = len(plain.ids)
    expected_ = ReferenceAttention(kv, plain, heads)(0, q[:real], k[:real], v[:real])
    got = paged_attention(kv, heads, padded, 4, False, SplitSpace.allocate([heads], 4, device, PROCESSORS))(0, q, k, v)
    assert torch.equal(got[:real], expected_)
    assert not got[real:].any()
    assert not kv.k_pages[0][0].any() and not kv.v_pages[0][0].any()


def test_splits_fill_the_device_and_fit_their_space() -> None:
    for heads in (Shape(32, 8, 128), Shape(9, 3, 64), Shape(16, 1, 64)):
        space = SplitSpace.allocate([heads], 8, "cpu", 132)
        room = len(space.totals)
        assert room == len(space.sums) // heads.head_dim
        for n in range(1, 300):
            splits = space.decode_splits(n, heads.kv_heads)
            assert 1 <= splits <= 32 and (splits == 1 or n * heads.kv_heads * splits <= 2 * 132)
            assert splits == 1 or n * splits * 8 * heads.heads <= room
            tile = prefill_tiling(n, heads, torch.bfloat16, space.processors).rows
            splits = space.prefill_splits(n, heads, tile)
            assert splits == 1 or n * splits * heads.heads <= room
    space = SplitSpace.allocate([Shape(32, 8, 128)], 8, "cpu", 132)
    assert [space.decode_splits(rows, 8) for rows in (1, 2, 4, 8, 16, 32, 250)] == [32, 16, 8, 4, 2, 1, 1]
    assert [space.prefill_splits(n, Shape(32, 8, 128), 64) for n in (32, 64, 128, 256, 512)] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "page_size", "message"), [(torch.float64, 4, "float64"), (torch.float32, 12, "power of two")]
)
def test_what_the_kernels_cannot_read_is_named(dtype: torch.dtype, page_size: int, message: str) -> None:
    heads, batch = Shape(2, 1, 8), make_batch([Row(3, 1)], page_size)
    kv = fill(batch, heads, page_size, dtype)
    with pytest.raises(OverdriveError, match=message):
        CudaAttention(kv, heads, batch, 1, False, SplitSpace.allocate([heads], 1, "cpu", PROCESSORS))


# At full size, on a device.

PAGE_EDGES = [Row(length, 1) for length in (0, 1, 14, 15, 16, 17, 31, 32, 62, 63, 64, 65, 127, 128, 1000, 1023, 1024)]
GROUPS = [(16, 16), (16, 8), (8, 1), (32, 8), (9, 3)]
SHAPES = [Shape(heads, kv_heads, dims) for dims in (128, 64) for heads, kv_heads in GROUPS]
HALF = [torch.bfloat16, torch.float16]
OTHERS = [torch.float16, torch.float32]


def on_device(rows: Sequence[Row], heads: Shape, **options: Any) -> None:
    check(rows, heads, device="cuda", processors=0, **options)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(shape, torch.bfloat16) for shape in SHAPES] + [(shape, dtype) for shape in SHAPES[-2:] for dtype in OTHERS],
)
def test_every_shape_class_is_right_on_a_device(shape: Shape, dtype: torch.dtype) -> None:
    on_device(PAGE_EDGES, shape, dtype=dtype, queries=1)
    ragged = [Row(37 * n % 1500, 1 + n % 8) for n in range(30)]
    on_device(ragged, shape, dtype=dtype)
    on_device([*ragged, Row(0, 300), Row(700, 65), Row(0, 0), Row(129, 9)], shape, dtype=dtype, padding=40)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", HALF)
def test_one_row_is_right_on_a_device_at_any_length(dtype: torch.dtype) -> None:
    for length in (1, 2, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4097, 9000):
        for tokens in (1, 4, 8, 16):
            if length >= tokens:
                on_device([Row(length - tokens, tokens)], Shape(32, 8, 128), dtype=dtype, queries=16)


@pytest.mark.cuda
@pytest.mark.parametrize("tokens", [1, 4, 8])
def test_256_rows_are_right_on_a_device(tokens: int) -> None:
    rows = [Row(97 * n % 600, 1 + n % tokens) for n in range(250)] + [Row(0, 0)] * 6
    on_device(rows, Shape(32, 8, 128), dtype=torch.bfloat16, queries=tokens, padding=24)


@pytest.mark.cuda
@pytest.mark.parametrize("window", [0, 1, 100, 1000])
@pytest.mark.parametrize("page_size", [4, 128])
def test_what_is_out_of_view_is_not_read_on_a_device(page_size: int, window: int) -> None:
    more = [Row(2000, 4, 1, (16, 1900)), Row(1500, 200, 1, (16, 1300)), Row(900, 500), Row(3000, 1)]
    on_device([*HIDDEN, *more], Shape(32, 8, 128, window), page_size=page_size, dtype=torch.bfloat16)
    for row in more:  # split over programs
        on_device([row], Shape(32, 8, 128, window), page_size=page_size, dtype=torch.bfloat16)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dims", "dtype"), [(32, torch.float32), (80, torch.bfloat16), (96, torch.float16), (256, torch.bfloat16)]
)
def test_other_head_widths_are_right_on_a_device(dims: int, dtype: torch.dtype) -> None:
    on_device([Row(300, 5), Row(70, 200), Row(0, 1)], Shape(16, 4, dims), dtype=dtype)


@pytest.mark.cuda
def test_16_queries_of_16_heads_are_right_on_a_device() -> None:
    for rows in ([Row(500, 16)], [Row(100 * n, 16 - n % 3) for n in range(8)]):
        on_device(rows, Shape(16, 1, 128), dtype=torch.bfloat16, queries=16)


@pytest.mark.cuda
@pytest.mark.parametrize("early", [False, True])
def test_a_replayed_graph_follows_lengths_and_pages_on_a_device(early: bool) -> None:
    heads = Shape(32, 8, 128)
    first = [Row(1000 + 40 * n, 1 + n % 4) for n in range(8)]
    for rows in ([Row(13 * n, 1 + (n + 1) % 4) for n in range(8)], [Row(3000, 8), *[Row(0, 0)] * 6, Row(17, 12)]):
        _replays(first, rows, heads, early)


def _replays(first: Sequence[Row], second: Sequence[Row], heads: Shape, early: bool) -> None:
    """A graph captured over the first rows and replayed over the second gives the second's results."""
    tokens, width = 40, 192
    cases = []
    for rows in (first, second):
        real = sum(row.tokens for row in rows)
        batch = make_batch(rows, 16, tokens - real, width)
        kv, qkv = fill(batch, heads, 16, torch.bfloat16), make_qkv(batch, heads, torch.bfloat16)
        cases.append((on("cuda", batch), kv, tuple(x.cuda() for x in qkv)))
    batch, kv, (q, k, v) = cases[0]
    kv = PagedKV([kv.k_pages[0].cuda()], [kv.v_pages[0].cuda()], 16)
    attention = CudaAttention(kv, heads, batch, 4, True, SplitSpace.allocate([heads], 4, "cuda"))
    attention.early = early
    attention(0, q, k, v)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(0, q, k, v)
    following, pages, inputs = cases[1]
    kv.k_pages[0].copy_(pages.k_pages[0])
    kv.v_pages[0].copy_(pages.v_pages[0])
    for field in fields(Batch):
        getattr(batch, field.name).copy_(getattr(following, field.name))
    for mine, given in zip((q, k, v), inputs, strict=True):
        mine.copy_(given)
    right = expected(batch, heads, kv, q, k, v)
    graph.replay()
    real = int(batch.offsets[-1])
    torch.testing.assert_close(out[:real].double(), right[:real], atol=2e-2, rtol=2e-2)
