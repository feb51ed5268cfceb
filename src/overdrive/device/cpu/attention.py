"""Paged attention on the CPU: keys and values are read where they lie, and a token's result is its own.

The result of a token is bit-equal whatever its query tile, its batch mates, the page size and the number of threads.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cpu.attention_kernels import (
    FIELDS,
    Arguments,
    Layout,
    attend_kernel,
    direct_pages,
    fold_kernel,
    store_kernel,
)
from overdrive.device.cpu.attention_tiles import BLOCK
from overdrive.device.cpu.team import Call, Team
from overdrive.device.cpu.tiles import TALL
from overdrive.errors import OverdriveError

QUERIES = 48  # of a tile, about: enough to use a block of keys well from the first-level cache
TASKS_PER_THREAD = 6  # with fewer, blocks become tasks of their own


class PagedAttention:
    """Compiled attention for one head width, shared by all layers and steps.

    store: write the batch's keys and values; attend: softmax(q k^T scale) v over each token's visible positions.
    Where `direct_pages` says so, keys lie transposed within their pages, sixteen at a time, [page_size / 16, D, 16]
    instead of [page_size, D]: this class alone reads what it has written.
    """

    def __init__(self, team: Team, head_dim: int) -> None:
        self._team = team
        self._dims = head_dim
        self._attend = Call(team, attend_kernel(head_dim), "q" * FIELDS + "d")
        self._fold = Call(team, fold_kernel(head_dim), "q" * FIELDS + "d")
        self._store = Call(team, store_kernel(head_dim), "q" * 11)

    def store(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, writes: Tensor) -> None:
        """k, v [T, Hkv, D], rows of any stride, go to places `writes` [T] of pages [n_pages, Hkv, page_size, D]."""
        tokens, kv_heads, dims = k.shape
        if k.stride()[1:] != (dims, 1) or v.stride()[1:] != (dims, 1) or dims != self._dims:
            raise OverdriveError(f"keys and values must be [T, heads, {self._dims}] with heads next to each other")
        page_size = k_pages.shape[2]
        self._store(
            k.data_ptr(), v.data_ptr(), 4 * k.stride(0), 4 * v.stride(0), writes.data_ptr(), tokens,
            k_pages.data_ptr(), v_pages.data_ptr(), kv_heads, page_size, int(direct_pages(page_size, dims)),
        )  # fmt: skip

    def attend(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: Batch, scale: float, window: int = 0
    ) -> Tensor:
        """q: [T, Hq, D] float32, rows of any stride. A token at position p sees p - window + 1 .. p (0: all up to p)
        of what its row shows: starts .. p without the gap.

        Returns [T, Hq * D]; zeros for tokens past the last row.
        """
        return self.prepare(batch, q.shape[1], k_pages.shape[1])(q, k_pages, v_pages, scale, window)

    def divide(self, batch: Batch, heads: int, kv_heads: int) -> tuple[int, int, int]:
        """Tokens that rows cover, query tiles, and `PreparedAttention.parts`. Asked for every pass: plain numbers."""
        offsets, tile = batch.offsets.numpy().tolist(), _tile(heads, kv_heads)
        tiles = [-(-(end - begin) // tile) for begin, end in pairwise(offsets)]
        count, few = sum(tiles), TASKS_PER_THREAD * self._team.threads
        if not 0 < count * kv_heads < few:
            return offsets[-1], count, 0
        starts, positions = batch.starts.numpy().tolist(), batch.positions.numpy()
        # Blocks of each row, from its first visible position up to its last token; a gap leaves room unused.
        blocks = [
            int(positions[end - 1]) // BLOCK + 1 - start // BLOCK if n else 0
            for n, end, start in zip(tiles, offsets[1:], starts, strict=True)
        ]
        parts = sum(n * more for n, more in zip(tiles, blocks, strict=True)) * kv_heads
        return offsets[-1], count, 1 << (parts - 1).bit_length() if max(blocks) > 1 else 0

    def prepare(self, batch: Batch, heads: int, kv_heads: int) -> PreparedAttention:
        """Everything about a batch that does not change from layer to layer."""
        return PreparedAttention(self, batch, heads, kv_heads)


def _tile(heads: int, kv_heads: int) -> int:
    """Tokens of a query tile."""
    return max(1, QUERIES // (heads // kv_heads))


class PreparedAttention:
    """Attention over one batch: which tiles there are, and whether blocks are tasks. Valid as long as the batch.

    parts: room for the results of blocks that are tasks of their own, a power of two; 0 when none are.
    """

    def __init__(self, attention: PagedAttention, batch: Batch, heads: int, kv_heads: int) -> None:
        self._owner = attention
        self._batch = batch
        self._kv_heads, self._group = kv_heads, heads // kv_heads
        self._tile = _tile(heads, kv_heads)
        capacity = -(-self._tile * self._group // TALL) * TALL
        self._layout = Layout(attention._dims, capacity)
        self._covered, tiles, self.parts = attention.divide(batch, heads, kv_heads)
        # A task that takes all heads in turn can ask for each block's keys while it works on the one before.
        many = tiles >= TASKS_PER_THREAD // 2 * attention._team.threads
        self._heads = kv_heads if many else 1

    def __call__(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, scale: float, window: int = 0) -> Tensor:
        """See `PagedAttention.attend`."""
        tokens, heads, dims = q.shape
        if q.stride()[1:] != (dims, 1) or q.dtype != torch.float32 or dims != self._owner._dims:
            raise OverdriveError(f"queries must be [T, heads, {self._owner._dims}] float32, heads next to each other")
        batch, layout, team = self._batch, self._layout, self._owner._team
        out = team.empty(tokens, heads * dims)
        if self._covered < tokens:
            out[self._covered :] = 0
        scratch = team.scratch(team.threads * layout.scratch + self.parts * layout.part)
        parts = scratch + team.threads * layout.scratch if self.parts else 0
        arguments = Arguments(
            q=q.data_ptr(),
            q_stride=4 * q.stride(0),
            positions=batch.positions.data_ptr(),
            offsets=batch.offsets.data_ptr(),
            starts=batch.starts.data_ptr(),
            gaps=batch.gaps.data_ptr(),
            table=batch.page_table.data_ptr(),
            table_stride=4 * batch.page_table.stride(0),
            k_pages=k_pages.data_ptr(),
            v_pages=v_pages.data_ptr(),
            out=out.data_ptr(),
            rows=len(batch.offsets) - 1,
            kv_heads=self._kv_heads,
            group=self._group,
            page_size=k_pages.shape[2],
            window=window,
            tile=self._tile,
            scratch=scratch,
            scratch_size=layout.scratch,
            parts=parts,
            part_size=layout.part,
            heads=self._heads,
            direct=int(direct_pages(k_pages.shape[2], dims)),
        )
        self._owner._attend(*arguments, scale)
        if parts:
            self._owner._fold(*arguments, scale)
        return out
