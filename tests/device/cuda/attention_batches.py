"""Batches over scattered pages for the laws of attention, and what the plain form says of them in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch


@dataclass(frozen=True)
class Shape:
    """`Heads` of one layer. width: of its window, 0 for none."""

    heads: int
    kv_heads: int
    head_dim: int
    width: int = 0
    layers: int = 1

    def window(self, layer: int) -> int:
        return self.width


class Row(NamedTuple):
    """`tokens` new ones after `context` old ones; sees nothing before `start` or in `gap`."""

    context: int
    tokens: int
    start: int = 0
    gap: tuple[int, int] = (0, 0)


def make_batch(rows: Sequence[Row], page_size: int, padding: int = 0, width: int = 0) -> Batch:
    """Rows with pages dealt at random, then `padding` tokens behind the last row that write into the scratch page.

    width: of the page table, 0 for what the longest row needs.
    """
    width = width or -(-max(row.context + row.tokens for row in rows) // page_size)
    table = 1 + torch.randperm(len(rows) * width, generator=torch.Generator().manual_seed(page_size))
    table = table.view(len(rows), width).int()
    counts = torch.tensor([row.tokens for row in rows])
    owners = torch.repeat_interleave(torch.arange(len(rows)), counts)
    positions = torch.cat([torch.arange(row.context, row.context + row.tokens) for row in rows])
    writes = table[owners, positions // page_size].long() * page_size + positions % page_size
    behind = torch.zeros(padding, dtype=torch.int64)
    return Batch(
        ids=torch.zeros(len(positions) + padding, dtype=torch.int64),
        positions=torch.cat([positions, behind]),
        rows=torch.cat([owners, behind + len(rows) - 1]),
        offsets=torch.cat([behind.new_zeros(1), counts.cumsum(0)]),
        page_table=table,
        starts=torch.tensor([row.start for row in rows]),
        gaps=torch.tensor([row.gap for row in rows]),
        writes=torch.cat([writes, behind]),
        wanted=torch.arange(0),
    )


def on(device: str, batch: Batch) -> Batch:
    """A copy of the batch there."""
    return Batch(**{field.name: getattr(batch, field.name).to(device) for field in fields(Batch)})


def fill(batch: Batch, heads: Shape, page_size: int, dtype: torch.dtype) -> PagedKV:
    """Pages whose places before each row's tokens hold numbers, and every other place NaN: nobody may read it."""
    random = torch.Generator().manual_seed(1)
    shape = (int(batch.page_table.max()) + 1, heads.kv_heads, page_size, heads.head_dim)
    stale = [torch.full(shape, float("nan")) for _ in range(2)]
    for row, (begin, end) in enumerate(batch.offsets.unfold(0, 2, 1).tolist()):
        old = torch.arange(int(batch.positions[begin]) if end > begin else 0)
        pages, slots = batch.page_table[row, old // page_size].long(), old % page_size
        for x in stale:
            x[pages, :, slots] = torch.randn(len(old), heads.kv_heads, heads.head_dim, generator=random)
    return PagedKV([stale[0].to(dtype)], [stale[1].to(dtype)], page_size)


def make_qkv(batch: Batch, heads: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Views of one product [T, (Hq + 2 Hkv) * D]; padding tokens hold NaN."""
    random = torch.Generator().manual_seed(2)
    qkv = torch.randn(len(batch.ids), heads.heads + 2 * heads.kv_heads, heads.head_dim, generator=random)
    qkv[int(batch.offsets[-1]) :] = float("nan")
    return split_heads(qkv.to(dtype), heads)


def split_heads(qkv: Tensor, heads: Shape) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = qkv.split([heads.heads, heads.kv_heads, heads.kv_heads], 1)
    return q, k, v


def expected(batch: Batch, heads: Shape, kv: PagedKV, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The plain form in float64 over a copy of the pages."""
    wide = PagedKV([x.double() for x in kv.k_pages], [x.double() for x in kv.v_pages], kv.page_size)
    return ReferenceAttention(wide, batch, heads)(0, q.double(), k.double(), v.double())
