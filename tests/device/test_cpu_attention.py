"""Laws of paged attention on the CPU: right against float64, and a token's result is its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cpu.attention import PagedAttention
from overdrive.device.cpu.attention_tiles import BLOCK
from overdrive.device.cpu.team import Team
from overdrive.errors import OverdriveError
from overdrive.model.dummy import tiny_config

HEADS, KV_HEADS, DIMS = 6, 2, 32
MIXED = [(0, 70), (300, 1), (130, 4), (127, 1), (128, 2), (383, 33), (7, 0), (0, 1)]  # (context before, tokens)


@pytest.fixture(scope="module")
def attention() -> PagedAttention:
    return PagedAttention(Team(2), DIMS)


class Story:
    """Rows with their own keys, values and queries for every position, laid into pages of any size, in any batch."""

    def __init__(self, rows: int, length: int, heads: int = HEADS, kv_heads: int = KV_HEADS, dims: int = DIMS) -> None:
        random = torch.Generator().manual_seed(3)
        self.length = length
        self.q = torch.randn(rows, length, heads, dims, generator=random)
        self.k = torch.randn(rows, length, kv_heads, dims, generator=random)
        self.v = torch.randn(rows, length, kv_heads, dims, generator=random)

    def attend(
        self,
        attention: PagedAttention,
        parts: list[tuple[int, int, int]],
        page_size: int = 16,
        window: int = 0,
        starts: list[int] | None = None,
        gaps: list[tuple[int, int]] | None = None,
    ) -> list[Tensor]:
        """Outputs of parts (row, first position, tokens), each [tokens, Hq * D], computed as one batch.

        Blocks wholly before a row's start or in its gap hold NaN; what else stands there is finite and other than in
        the row's story.
        """
        width = -(-self.length // page_size)
        table = 1 + torch.randperm(len(parts) * width, generator=torch.Generator().manual_seed(page_size))
        table = table.view(len(parts), width).int()
        pages = [
            torch.full((table.numel() + 1, x.shape[2], page_size, x.shape[3]), float("nan")) for x in (self.k, self.v)
        ]
        batch, counts = _batch(table, parts, page_size, starts, gaps), [count for _, _, count in parts]
        for index, (row, first, count) in enumerate(parts):
            places, start, gap = torch.arange(first + count), int(batch.starts[index]), batch.gaps[index]
            hidden = (places < start) | ((places >= gap[0]) & (places < gap[1]))
            k, v = self.k[row, : len(places)].clone(), self.v[row, : len(places)].clone()
            k[hidden], v[hidden] = -40 * k[hidden], -40 * v[hidden]
            block = places // BLOCK
            stored = (block >= start // BLOCK) & ((block < -(-gap[0] // BLOCK)) | (block >= gap[1] // BLOCK))
            attention.store(k[stored], v[stored], *pages, _places(table, index, places[stored], page_size))
        q = torch.cat([self.q[row, first : first + count] for row, first, count in parts])
        return list(attention.attend(q, *pages, batch, 0.2, window).split(counts))

    def expected(
        self, row: int, first: int, count: int, window: int, start: int = 0, gap: tuple[int, int] = (0, 0)
    ) -> Tensor:
        """The same in float64, dense."""
        q, k, v = (x[row].double() for x in (self.q, self.k, self.v))
        k, v = (x[: first + count].repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        places = torch.arange(first + count)
        distance = places[first:, None] - places
        hidden = (distance < 0) | ((distance >= window) if window else False)
        hidden = hidden | (places < start) | ((places >= gap[0]) & (places < gap[1]))
        scores = torch.einsum("thd,lhd->htl", q[first : first + count], k) * 0.2
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("htl,lhd->thd", weights, v).flatten(1)


def _places(table: Tensor, row: int, positions: Tensor, page_size: int) -> Tensor:
    return table[row, positions // page_size].long() * page_size + positions % page_size


def _batch(
    table: Tensor,
    parts: list[tuple[int, int, int]],
    page_size: int,
    starts: list[int] | None = None,
    gaps: list[tuple[int, int]] | None = None,
) -> Batch:
    positions = [torch.arange(first, first + count) for _, first, count in parts]
    counts = torch.tensor([count for _, _, count in parts])
    return Batch(
        ids=torch.zeros(int(counts.sum()), dtype=torch.int64),
        positions=torch.cat(positions),
        rows=torch.repeat_interleave(torch.arange(len(parts)), counts),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        page_table=table,
        starts=torch.tensor(starts or [0] * len(parts)),
        gaps=torch.tensor(gaps or [(0, 0)] * len(parts)),
        writes=torch.cat([_places(table, index, p, page_size) for index, p in enumerate(positions)]),
        wanted=torch.arange(0),
    )


@pytest.mark.parametrize("window", [0, 37, 200])
@pytest.mark.parametrize("page_size", [4, 16, 64])
def test_attention_is_that_of_float64(attention: PagedAttention, page_size: int, window: int) -> None:
    story = Story(len(MIXED), 420)
    parts = [(row, first, count) for row, (first, count) in enumerate(MIXED)]
    for part, got in zip(parts, story.attend(attention, parts, page_size, window), strict=True):
        torch.testing.assert_close(got.double(), story.expected(*part, window), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 37])
@pytest.mark.parametrize("page_size", [4, 16, 64])
def test_a_row_sees_nothing_before_its_start(attention: PagedAttention, page_size: int, window: int) -> None:
    parts = [(0, 1, 5), (1, 130, 4), (2, 300, 1), (3, 300, 60), (4, 255, 3), (5, 64, 1), (6, 5, 100), (7, 417, 3)]
    starts = [1, 100, 256, 300, 255, 64, 0, 129]
    story = Story(len(parts), 420)
    together = story.attend(attention, parts, page_size, window, starts)
    for part, start, got in zip(parts, starts, together, strict=True):
        expected = story.expected(*part, window, start)
        torch.testing.assert_close(got.double(), expected, atol=3e-6, rtol=1e-5)
        [alone] = story.attend(attention, [part], page_size, window, [start])  # by blocks, where there are several
        assert torch.equal(alone, got)


@pytest.mark.parametrize("start", [1, 100, 128, 250])
def test_a_token_behind_a_start_does_not_depend_on_chunking(attention: PagedAttention, start: int) -> None:
    story, length = Story(1, 300), 300
    [whole] = story.attend(attention, [(0, start, length - start)], starts=[start])
    for first in (start, 255, 256, 299):
        [part] = story.attend(attention, [(0, first, 1)], starts=[start])
        assert torch.equal(part, whole[first - start : first - start + 1]), first
    [first_token] = story.attend(attention, [(0, start, 1)], starts=[start])
    torch.testing.assert_close(first_token.view(HEADS, DIMS), story.v[0, start].repeat_interleave(3, 0))


GAPS = [(16, 300), (5, 17), (64, 128), (65, 256), (128, 384), (0, 200), (0, 0), (1, 127), (127, 129), (16, 413)]
"""Within a block, at the ends of blocks and pages, across blocks, at the row's beginning, none."""


@pytest.mark.parametrize("window", [0, 37, 200])
@pytest.mark.parametrize("page_size", [4, 16, 64])
def test_a_row_does_not_see_its_gap(attention: PagedAttention, page_size: int, window: int) -> None:
    parts = [(row, max(end, 390) if row % 3 else end, 3 + row % 4) for row, (_, end) in enumerate(GAPS)]
    starts, story = [row % 2 for row in range(len(GAPS))], Story(len(GAPS), 420)
    together = story.attend(attention, parts, page_size, window, starts, GAPS)
    for part, start, gap, got in zip(parts, starts, GAPS, together, strict=True):
        expected = story.expected(*part, window, start, gap)
        torch.testing.assert_close(got.double(), expected, atol=3e-6, rtol=1e-5)
        [alone] = story.attend(attention, [part], page_size, window, [start], [gap])
        assert torch.equal(alone, got)


@pytest.mark.parametrize("gap", GAPS)
def test_a_token_behind_a_gap_does_not_depend_on_chunking(attention: PagedAttention, gap: tuple[int, int]) -> None:
    story, length, begin = Story(1, 420), 420, max(gap[1], 1)
    [whole] = story.attend(attention, [(0, begin, length - begin)], starts=[1], gaps=[gap])
    for first in (begin, *(place for place in (256, 383, 384, 419) if place > begin)):
        [part] = story.attend(attention, [(0, first, 1)], starts=[1], gaps=[gap])
        assert torch.equal(part, whole[first - begin : first - begin + 1]), first


def test_a_gap_from_the_beginning_is_a_later_start(attention: PagedAttention) -> None:
    story, parts = Story(2, 420), [(0, 300, 40), (1, 130, 1)]
    later = story.attend(attention, parts, starts=[260, 128])
    for got, expected in zip(story.attend(attention, parts, gaps=[(0, 260), (0, 128)]), later, strict=True):
        assert torch.equal(got, expected)


def test_the_reference_and_the_kernels_see_the_same(attention: PagedAttention) -> None:
    heads = tiny_config(heads=HEADS, kv_heads=KV_HEADS, head_dim=DIMS, windows=(0, 37))
    parts, starts, gaps = [(0, 5, 3), (1, 200, 2), (2, 90, 1)], [1, 129, 1], [(0, 0), (150, 190), (8, 90)]
    story, table = Story(3, 210), (1 + torch.randperm(3 * 27)).view(3, 27).int()
    batch = _batch(table, parts, 8, starts, gaps)
    q, k, v = (torch.cat([x[row, at : at + n] for row, at, n in parts]) for x in (story.q, story.k, story.v))
    stored = [torch.randn(82, KV_HEADS, 8, DIMS) for _ in range(2)]
    kv = PagedKV([x.clone() for x in stored[:1]] * 2, [x.clone() for x in stored[1:]] * 2, 8)
    for layer, window in ((0, 0), (1, 37)):
        expected = ReferenceAttention(kv, batch, heads)(layer, q, k, v)
        got = attention.attend(q, kv.k_pages[layer], kv.v_pages[layer], batch, DIMS**-0.5, window)
        torch.testing.assert_close(got, expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "dims"), [(4, 4, 8), (3, 1, 20), (64, 1, 16), (8, 2, 128)])
def test_any_head_shape_is_right(heads: int, kv_heads: int, dims: int) -> None:
    story = Story(2, 150, heads, kv_heads, dims)
    parts = [(0, 100, 50), (1, 149, 1)]
    for part, got in zip(parts, story.attend(PagedAttention(Team(2), dims), parts), strict=True):
        torch.testing.assert_close(got.double(), story.expected(*part, 0), atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 100])
def test_a_token_does_not_depend_on_chunking(attention: PagedAttention, window: int) -> None:
    story, length = Story(1, 300), 300
    [whole] = story.attend(attention, [(0, 0, length)], window=window)
    for chunk in (1, 5, 16, 128):
        starts = range(0, length, chunk) if chunk > 1 else (0, 1, 126, 127, 128, 129, 255, 256, 299)
        for first in starts:
            count = min(chunk, length - first)
            [part] = story.attend(attention, [(0, first, count)], window=window)
            assert torch.equal(part, whole[first : first + count]), (chunk, first)


def test_a_token_does_not_depend_on_batch_mates_or_pages(attention: PagedAttention) -> None:
    story = Story(40, 300)
    [alone] = story.attend(attention, [(0, 280, 4)])
    for mates in (1, 3, 39):
        for page_size in (4, 16, 64):
            parts = [(row, 10 * row % 290, 1 + row % 9) for row in range(1, mates + 1)]
            assert torch.equal(story.attend(attention, [*parts, (0, 280, 4)], page_size)[-1], alone)


@pytest.mark.parametrize("parts", [[(0, 299, 1)], [(0, 100, 200), (1, 5, 2)]])
def test_a_token_does_not_depend_on_the_threads(attention: PagedAttention, parts: list[tuple[int, int, int]]) -> None:
    story = Story(2, 300)
    expected = story.attend(attention, parts)
    for threads in (1, 3):
        got = story.attend(PagedAttention(Team(threads), DIMS), parts)
        assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))


def test_stored_keys_and_values_come_from_views(attention: PagedAttention) -> None:
    qkv = torch.randn(20, HEADS + 2 * KV_HEADS, DIMS)
    _, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
    pages = [torch.zeros(9, KV_HEADS, 4, DIMS) for _ in range(2)]
    writes = 4 + torch.randperm(32)[:20]
    attention.store(k, v, *pages, writes)
    for stored, given in zip(pages, (k, v), strict=True):
        assert torch.equal(stored.transpose(1, 2).flatten(0, 1)[writes], given)
        assert stored.count_nonzero() == given.count_nonzero()


def test_a_wrong_shape_is_named(attention: PagedAttention) -> None:
    story = Story(1, 20, dims=16)
    with pytest.raises(OverdriveError, match="heads, 32"):
        story.attend(attention, [(0, 0, 5)])
