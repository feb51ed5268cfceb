"""Laws of paged attention on the CPU: right against float64, and a token's result is its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cpu.attention import PagedAttention
from overdrive.device.cpu.team import Team
from overdrive.errors import OverdriveError

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
        self, attention: PagedAttention, parts: list[tuple[int, int, int]], page_size: int = 16, window: int = 0
    ) -> list[Tensor]:
        """Outputs of parts (row, first position, tokens), each [tokens, Hq * D], computed as one batch."""
        width = -(-self.length // page_size)
        table = 1 + torch.randperm(len(parts) * width, generator=torch.Generator().manual_seed(page_size))
        table = table.view(len(parts), width).int()
        pages = [
            torch.full((table.numel() + 1, x.shape[2], page_size, x.shape[3]), float("nan")) for x in (self.k, self.v)
        ]
        batch, counts = _batch(table, parts, page_size), [count for _, _, count in parts]
        for index, (row, first, count) in enumerate(parts):
            places = _places(table, index, torch.arange(first + count), page_size)
            attention.store(self.k[row, : first + count], self.v[row, : first + count], *pages, places)
        q = torch.cat([self.q[row, first : first + count] for row, first, count in parts])
        return list(attention.attend(q, *pages, batch, 0.2, window).split(counts))

    def expected(self, row: int, first: int, count: int, window: int) -> Tensor:
        """The same in float64, dense."""
        q, k, v = (x[row].double() for x in (self.q, self.k, self.v))
        k, v = (x[: first + count].repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        distance = torch.arange(first, first + count)[:, None] - torch.arange(first + count)
        hidden = (distance < 0) | ((distance >= window) if window else False)
        scores = torch.einsum("thd,lhd->htl", q[first : first + count], k) * 0.2
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("htl,lhd->thd", weights, v).flatten(1)


def _places(table: Tensor, row: int, positions: Tensor, page_size: int) -> Tensor:
    return table[row, positions // page_size].long() * page_size + positions % page_size


def _batch(table: Tensor, parts: list[tuple[int, int, int]], page_size: int) -> Batch:
    positions = [torch.arange(first, first + count) for _, first, count in parts]
    counts = torch.tensor([count for _, _, count in parts])
    return Batch(
        ids=torch.zeros(int(counts.sum()), dtype=torch.int64),
        positions=torch.cat(positions),
        rows=torch.repeat_interleave(torch.arange(len(parts)), counts),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        page_table=table,
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
