"""Paged attention on a CUDA device: one or two launches for the rows of a few tokens, one for those of many.

Chooses grids and tiles from static shapes; lengths, pages and offsets are the kernels' to read, so a pass can be a
CUDA graph that is replayed with others. Knows the batch and the pages, nothing of requests, drafts or the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.device.attention.reference import Heads, PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cuda.store import power_of_two, store_triton
from overdrive.errors import OverdriveError
from overdrive.model.transformer import Attention

MOST_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 2
LEAST_ROWS = 16
"""Rows of the smallest tile that the tensor cores multiply."""
SEARCHED_ROWS = 256
"""Rows of a batch that a prefill program looks through at least: one binary serves all batches up to that."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Tiling(NamedTuple):
    """How a kernel divides its work. rows: queries x heads of a tile. keys: of a tile. warps, stages: of a program."""

    rows: int
    keys: int
    warps: int
    stages: int


def decode_tiling(queries: int, group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """Of rows with up to `queries` tokens and `group` heads to a key head: everything that reads a key is one tile."""
    rows, width = power_of_two(max(LEAST_ROWS, queries * group)), power_of_two(head_dim)
    if dtype == torch.float32:  # no tensor cores: what is tested in this type is exactness
        return Tiling(rows, 16 if width > 128 else 32, 4 if rows <= 16 else 8, 2)
    if width > 128:
        return Tiling(rows, 32, 4 if rows <= 32 else 8, 3)
    return Tiling(rows, 64, 4 if rows <= 64 else 8, 3)


def prefill_tiling(group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """Of rows with many tokens."""
    width = power_of_two(head_dim)
    if dtype == torch.float32:
        return Tiling(32, 16 if width > 128 else 32, 8, 2)
    if width > 128:
        return Tiling(64, 32, 4, 2)
    return Tiling(128, 64, 8, 3)


@dataclass(frozen=True, slots=True)
class SplitSpace:
    """Where the parts of split rows wait to be combined: allocated once, used by every layer of every pass in turn.

    programs: of a launch that keep the device busy. sums, totals, tops: float32, as the kernels say.
    """

    programs: int
    sums: Tensor
    totals: Tensor
    tops: Tensor

    @classmethod
    def allocate(
        cls, networks: Iterable[Heads], queries: int, device: torch.device | str, programs: int = 0
    ) -> SplitSpace:
        """Room for any pass of these networks with rows of up to `queries` tokens.

        programs: 0 for twice the device's multiprocessors.
        """
        if not programs:
            processors = torch.cuda.get_device_properties(torch.device(device)).multi_processor_count
            programs = PROGRAMS_PER_PROCESSOR * processors
        # Rows are split only while rows x key heads x splits is at most `programs`.
        sizes = [(programs // heads.kv_heads * heads.heads * queries, heads.head_dim) for heads in networks]
        parts, numbers = max(n for n, _ in sizes), max(n * width for n, width in sizes)

        def zeros(n: int) -> Tensor:
            return torch.zeros(n, dtype=torch.float32, device=device)

        return cls(programs, zeros(numbers), zeros(parts), zeros(parts))

    def splits(self, rows: int, kv_heads: int) -> int:
        """Programs that share a row's keys: a power of two, 1 where rows and heads alone keep the device busy."""
        return min(MOST_SPLITS, 1 << max(0, (self.programs // (rows * kv_heads)).bit_length() - 1))


class CudaAttention:
    """`Attention` of one pass by Triton kernels; makes nothing but the result, and can be captured.

    kv: pages in bfloat16, float16 or float32, as q, k and v will be. batch: may be padded: rows without tokens, tokens
    behind the last row. Nothing is stored for those tokens, and their results are left as they are.
    queries: rows of at most this many tokens take the one kernel; rows of more exist only when `long_rows`, and take
    the other. space: of this network and at least this many queries; passes that use it must not overlap.
    decode, prefill, splits: the choices made, which a benchmark may replace before it calls.
    Raises OverdriveError for what the kernels cannot read.
    """

    def __init__(
        self, kv: PagedKV, heads: Heads, batch: Batch, queries: int, long_rows: bool, space: SplitSpace
    ) -> None:
        self._kv = kv
        self._heads = heads
        self._batch = batch
        self._queries = queries
        self._long_rows = long_rows
        self._space = space
        group, dtype = heads.heads // heads.kv_heads, kv.k_pages[0].dtype
        self._require_fit(dtype)
        self.decode = decode_tiling(queries, group, heads.head_dim, dtype)
        self.prefill = prefill_tiling(group, heads.head_dim, dtype)
        self.splits = space.splits(len(batch.offsets) - 1, heads.kv_heads)
        self._require_room()

    def _require_fit(self, dtype: torch.dtype) -> None:
        if dtype not in DTYPES:
            raise OverdriveError(f"attention on CUDA takes bfloat16, float16 or float32, not {dtype}")
        if self._kv.page_size & (self._kv.page_size - 1):
            raise OverdriveError(
                f"attention on CUDA needs a page size that is a power of two, not {self._kv.page_size}"
            )
        if self._batch.page_table.dtype != torch.int32 or self._batch.page_table.stride(1) != 1:
            raise OverdriveError("attention on CUDA needs a page table of 32-bit integers, pages next to each other")

    def _require_room(self) -> None:
        parts = (len(self._batch.offsets) - 1) * self._queries * self._heads.heads * self.splits
        room = min(len(self._space.totals), len(self._space.sums) // self._heads.head_dim)
        if self.splits > 1 and parts > room:
            raise OverdriveError(f"split attention needs room for {parts} parts, not {room}: too many queries to a row")

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_pages, v_pages = self._kv.k_pages[layer], self._kv.v_pages[layer]
        store_triton(k, v, k_pages, v_pages, self._batch.writes, self._batch.offsets)
        return self.attend(layer, q)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """The same for a batch whose keys and values already stand in the pages, as `rope_store` leaves them."""
        if q.stride()[1:] != (q.shape[2], 1):
            raise OverdriveError(f"heads must stand next to each other, [T, heads, D]; q has strides {q.stride()}")
        out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
        self._attend_short(layer, q, out)
        if self._long_rows:
            self._attend_long(layer, q, out)
        return out

    def _attend_short(self, layer: int, q: Tensor, out: Tensor) -> None:
        from overdrive.device.cuda.attention_kernels import combine_kernel, decode_kernel

        batch, space, heads, splits, tiling = self._batch, self._space, self._heads, self.splits, self.decode
        rows, width = len(batch.offsets) - 1, power_of_two(heads.head_dim)
        decode_kernel[(rows, heads.kv_heads, splits)](
            *self._inputs(layer, q, out), space.sums, space.totals, space.tops, heads.window(layer), self._queries,
            splits, self._scale(), SPLIT=splits > 1, **self._constants(layer, tiling), num_warps=tiling.warps,
            num_stages=tiling.stages,
        )  # fmt: skip
        if splits > 1:
            combine_kernel[(rows * self._queries, heads.heads)](
                out, space.sums, space.totals, space.tops, batch.offsets, self._queries,
                SPLITS=splits, HEADS=heads.heads, D=heads.head_dim, WIDTH=width, num_warps=4,
            )  # fmt: skip

    def _attend_long(self, layer: int, q: Tensor, out: Tensor) -> None:
        from overdrive.device.cuda.attention_kernels import prefill_kernel

        heads, tiling, rows = self._heads, self.prefill, len(self._batch.offsets) - 1
        tokens = tiling.rows // (heads.heads // heads.kv_heads)  # of a tile
        tiles = len(q) // tokens + min(rows, len(q) // (self._queries + 1))
        if not tiles:
            return
        prefill_kernel[(heads.kv_heads, tiles)](
            *self._inputs(layer, q, out), heads.window(layer), self._queries, rows, self._scale(),
            **self._constants(layer, tiling), MOST_ROWS=power_of_two(max(rows, SEARCHED_ROWS)),
            num_warps=tiling.warps, num_stages=tiling.stages,
        )  # fmt: skip

    def _inputs(self, layer: int, q: Tensor, out: Tensor) -> tuple[object, ...]:
        """What both kernels begin with."""
        batch, kv = self._batch, self._kv
        return (
            out, q, q.stride(0), kv.k_pages[layer], kv.v_pages[layer], batch.page_table, batch.page_table.stride(0),
            batch.offsets, batch.positions, batch.starts, batch.gaps,
        )  # fmt: skip

    def _constants(self, layer: int, tiling: Tiling) -> dict[str, int]:
        heads = self._heads
        return {
            "WINDOWED": heads.window(layer) > 0,
            "GROUP": heads.heads // heads.kv_heads,
            "KV_HEADS": heads.kv_heads,
            "PAGE": self._kv.page_size,
            "D": heads.head_dim,
            "WIDTH": power_of_two(heads.head_dim),
            "KEYS": tiling.keys,
            "ROWS": tiling.rows,
        }

    def _scale(self) -> float:
        """Of scores whose softmax is taken in base 2."""
        return math.log2(math.e) * self._heads.head_dim**-0.5


def paged_attention(
    kv: PagedKV, heads: Heads, batch: Batch, queries: int, long_rows: bool, space: SplitSpace
) -> Attention:
    """`CudaAttention` of pages on a CUDA device, `ReferenceAttention` of others."""
    if kv.k_pages[0].is_cuda:
        return CudaAttention(kv, heads, batch, queries, long_rows, space)
    return ReferenceAttention(kv, batch, heads)
