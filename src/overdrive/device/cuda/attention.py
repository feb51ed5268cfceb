"""Paged attention on a CUDA device: one launch for the rows of a few tokens, one for those of many.

Chooses grids and tiles from static shapes; lengths, pages and offsets are the kernels' to read, so a pass can be a
CUDA graph that is replayed with others. Knows the batch and the pages, nothing of requests, drafts or the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overdrive.device.attention.reference import Heads, PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cuda.store import power_of_two, require_dense, rope_store_triton, store_triton
from overdrive.errors import OverdriveError
from overdrive.model.ops import Angles, Attention

MOST_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 2
LEAST_ROWS = 16
"""Rows of the smallest tile that the tensor cores multiply."""
FEW_KEYS = 2048
"""Keys that all programs of a row together have at least: a share of fewer costs more to combine than it saves."""
MANY_PROGRAMS = 3.0
"""For each that a device holds at once, from which on small tiles of keys do not pay."""
MOST_FOLDED = 2.0
"""The same, up to which they store as well: it takes registers, and fewer of them are there at once."""
SMALL_TILE = 64
"""Queries x heads of the prefill tile where rows are split."""
SEARCHED_ROWS = 256
"""Rows of a batch that a prefill program looks through at least: one binary serves all batches up to that."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Tiling(NamedTuple):
    """How a kernel divides its work. rows: queries x heads of a tile. keys: of a tile. warps, stages: of a program."""

    rows: int
    keys: int
    warps: int
    stages: int


def decode_tiling(
    queries: int, group: int, head_dim: int, dtype: torch.dtype, splits: int, programs: float = 1.0
) -> Tiling:
    """Of rows with up to `queries` tokens and `group` heads to a key head: everything that reads a key is one tile.

    A program has stages - 1 tiles of keys and values under way. Where rows are split a program has few tiles, and they
    are large. Where they are not there are several programs to a multiprocessor, in turns: small tiles let more of them
    be there at once, with as many bytes under way, and the last turn is shorter. With very many, which come and go all
    the time, that is no matter.

    splits: programs that a row is split among. programs: of the whole launch, for each that the device holds at once.
    """
    rows, width = power_of_two(max(LEAST_ROWS, queries * group)), power_of_two(head_dim)
    if dtype == torch.float32:  # no tensor cores: what is tested in this type is exactness
        return Tiling(rows, 16 if width > 128 else 32, 4 if rows <= 16 else 8, 2)
    if width > 128:
        return Tiling(rows, 32, 4 if rows <= 32 else 8, 3)
    if rows > 32:
        return Tiling(rows, 64, 4 if rows <= 64 else 8, 3)
    if splits >= 8:  # a share is a tile or two, and is over before a third stage would help
        return Tiling(rows, 128, 4, 2)
    return Tiling(rows, 64 if splits > 1 or programs > MANY_PROGRAMS else 32, 4, 3)


def prefill_tiling(tokens: int, heads: Heads, dtype: torch.dtype, programs: int) -> Tiling:
    """Of rows with many tokens, `tokens` in all: the large tile where it makes enough programs to keep a device busy.

    programs: as many as that takes.
    """
    width = power_of_two(heads.head_dim)
    if dtype == torch.float32:
        return Tiling(32, 16 if width > 128 else 32, 8, 2)
    if width > 128:
        return Tiling(64, 32, 4, 2)
    return Tiling(128, 64, 8, 3) if tokens * heads.heads >= 128 * programs else Tiling(SMALL_TILE, 64, 4, 3)


@dataclass(frozen=True, slots=True)
class SplitSpace:
    """Where the parts of split rows wait to be combined: allocated once, used by every layer of every pass in turn.

    processors: multiprocessors of the device. sums, totals, tops: float32, as the kernels say. arrivals: int32, parts
    that have come, by tile; every launch leaves them 0. early: whether kernels are set up while those before them run.
    """

    processors: int
    sums: Tensor
    totals: Tensor
    tops: Tensor
    arrivals: Tensor
    early: bool

    @classmethod
    def allocate(
        cls,
        networks: Iterable[Heads],
        queries: int,
        device: torch.device | str,
        processors: int = 0,
        early: bool = False,
    ) -> SplitSpace:
        """Room for any pass of these networks with short rows of up to `queries` tokens.

        processors: 0 for those of the device. early: as in `CudaOps`; GPUs before Hopper cannot.
        """
        device = torch.device(device)
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            processors, early = processors or properties.multi_processor_count, early and properties.major >= 9
        # Only while a launch has fewer programs than this are rows split; each makes so many parts.
        programs = PROGRAMS_PER_PROCESSOR * processors
        sizes = [
            (programs * max(queries * heads.heads // heads.kv_heads, SMALL_TILE), heads.head_dim) for heads in networks
        ]
        parts, numbers = max(n for n, _ in sizes), max(n * width for n, width in sizes)

        def zeros(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n, dtype=dtype, device=device)

        return cls(processors, zeros(numbers), zeros(parts), zeros(parts), zeros(parts, torch.int32), early)

    def decode_splits(self, rows: int, kv_heads: int) -> int:
        """Programs that share a short row's keys: as many as a device holds at once, 1 where rows x heads are as many.

        Never more: a second turn costs more than shorter shares save.
        """
        return _split(PROGRAMS_PER_PROCESSOR * self.processors, rows * kv_heads)

    def prefill_splits(self, tokens: int, heads: Heads, tile: int) -> int:
        """The same for tiles of `tile` queries x heads of long rows, which are one program to a multiprocessor."""
        return _split(self.processors, -(-tokens * heads.heads // tile))


def _split(programs: int, tasks: int) -> int:
    return min(MOST_SPLITS, max(1, programs // tasks))


class CudaAttention:
    """`Attention` of one pass by Triton kernels; makes nothing but the result, and can be captured.

    kv: pages in bfloat16, float16 or float32, as q, k and v will be. batch: may be padded: rows without tokens, tokens
    behind the last row. Nothing is stored for those tokens, and their results are left as they are.
    queries: rows of at most this many tokens take the one kernel; rows of more exist only when `long_rows`, and take
    the other. space: of this network and at least this many queries; passes that use it must not overlap.
    decode, prefill, splits, least, prefill_splits, early, fold: the choices made, which a benchmark may replace before
    it calls. least: tiles of keys that are not split any more. early: kernels of attention are set up while the one
    before still runs. fold: what is rotated on the way is stored by the launch that attends, which is possible for
    short rows and heads whose width is a power of two.
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
        self._rows, self._tokens = len(batch.offsets) - 1, len(batch.ids)
        group, dtype = heads.heads // heads.kv_heads, kv.k_pages[0].dtype
        self._require_fit(dtype)
        self.prefill = prefill_tiling(self._tokens, heads, dtype, space.processors)
        self.splits = space.decode_splits(self._rows, heads.kv_heads)
        programs = self._rows * heads.kv_heads / (PROGRAMS_PER_PROCESSOR * space.processors)
        self.decode = decode_tiling(queries, group, heads.head_dim, dtype, self.splits, programs)
        self.least = max(1, FEW_KEYS // self.splits // self.decode.keys)
        self.prefill_splits = space.prefill_splits(self._tokens, heads, self.prefill.rows)
        self.early = space.early
        self.fold = not long_rows and programs <= MOST_FOLDED and power_of_two(heads.head_dim) == heads.head_dim
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
        short = self._rows * self._queries * self.splits if self.splits > 1 else 0
        long = self._tokens * self.prefill_splits if self._long_rows and self.prefill_splits > 1 else 0
        parts = max(short, long) * self._heads.heads
        room = min(len(self._space.totals), len(self._space.sums) // self._heads.head_dim)
        if parts > room:
            raise OverdriveError(f"split attention needs room for {parts} parts, not {room}: too many queries to a row")

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_pages, v_pages = self._kv.k_pages[layer], self._kv.v_pages[layer]
        store_triton(k, v, k_pages, v_pages, self._batch.writes, self._batch.offsets, self.early)
        return self.attend(layer, q)

    def rotate_and_attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, angles: Angles) -> Tensor:
        """The same for q and k before rotary position embedding: rotated by the launch that stores, q in place or not.

        angles: as `rope_store` takes them.
        """
        if self.fold:
            return self._fold(layer, q, k, v, angles)
        batch, k_pages, v_pages = self._batch, self._kv.k_pages[layer], self._kv.v_pages[layer]
        rope_store_triton(q, k, v, *angles, k_pages, v_pages, batch.writes, batch.offsets, self.early)
        return self.attend(layer, q)

    def _fold(self, layer: int, q: Tensor, k: Tensor, v: Tensor, angles: Angles) -> Tensor:
        """`rotate_and_attend` by one launch, which leaves q as it is."""
        require_dense(q, k, v)
        out = _room(q)
        new = (k, v, k.stride(0), v.stride(0), angles.cos, angles.sin, self._batch.writes)
        self._attend_short(layer, q, out, new, power_of_two(max(LEAST_ROWS, self._queries)))
        return out

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """The same for a batch whose keys and values already stand in the pages, as `rope_store` leaves them."""
        require_dense(q)
        out = _room(q)
        self._attend_short(layer, q, out, (q, q, 0, 0, q, q, self._batch.writes), 0)
        if self._long_rows:
            self._attend_long(layer, q, out)
        return out

    def compile(self) -> None:
        """Have the kernels compiled that the pass launches, without running them."""
        windowed = {self._heads.window(layer) > 0: layer for layer in range(len(self._kv.k_pages))}
        for layer in windowed.values():
            self._compile(layer)

    def _compile(self, layer: int) -> None:
        heads, device = self._heads, self._batch.ids.device
        dtype, new = self._kv.k_pages[layer].dtype, self._batch.writes
        q = torch.empty((1, heads.heads, heads.head_dim), dtype=dtype, device=device)
        out, k = _room(q), q[:, : heads.kv_heads]
        stored = (k, k, q.stride(0), q.stride(0), q, q, new)
        most_new = power_of_two(max(LEAST_ROWS, self._queries)) if self.fold else 0
        self._short(layer, q, out, stored if self.fold else (q, q, 0, 0, q, q, new), most_new).compile()
        if self._long_rows:
            self._long(layer, q, out).compile()

    def _attend_short(self, layer: int, q: Tensor, out: Tensor, new: tuple[object, ...], most_new: int) -> None:
        """new: what a launch that stores the rows' own tokens takes beside; most_new: of a row, 0 where they stand."""
        self._short(layer, q, out, new, most_new).run()

    def _short(self, layer: int, q: Tensor, out: Tensor, new: tuple[object, ...], most_new: int) -> _Launch:
        from overdrive.device.cuda.attention_kernels import decode_kernel

        grid = (self._rows, self._heads.kv_heads, self.splits)
        inputs = (*self._inputs(layer, q, out, self.splits), self.least, *new)
        constants = self._constants(layer, self.decode, self.splits)
        return _Launch(decode_kernel, grid, inputs, constants | {"NEW": most_new})

    def _attend_long(self, layer: int, q: Tensor, out: Tensor) -> None:
        launch = self._long(layer, q, out)
        if launch.grid[1]:
            launch.run()

    def _long(self, layer: int, q: Tensor, out: Tensor) -> _Launch:
        from overdrive.device.cuda.attention_kernels import prefill_kernel

        tokens = self.prefill.rows // (self._heads.heads // self._heads.kv_heads)  # of a tile
        tiles = self._tokens // tokens + min(self._rows, self._tokens // (self._queries + 1))
        grid = (self._heads.kv_heads, tiles, self.prefill_splits)
        inputs = (*self._inputs(layer, q, out, self.prefill_splits), self._rows)
        constants = self._constants(layer, self.prefill, self.prefill_splits)
        return _Launch(
            prefill_kernel, grid, inputs, constants | {"MOST_ROWS": power_of_two(max(self._rows, SEARCHED_ROWS))}
        )

    def _inputs(self, layer: int, q: Tensor, out: Tensor, splits: int) -> tuple[object, ...]:
        """What both kernels begin with."""
        batch, kv, space, heads = self._batch, self._kv, self._space, self._heads
        return (
            out, q, q.stride(0), kv.k_pages[layer], kv.v_pages[layer], batch.page_table, batch.page_table.stride(0),
            batch.offsets, batch.positions, batch.starts, batch.gaps, space.sums, space.totals, space.tops,
            space.arrivals, heads.window(layer), self._queries, splits, math.log2(math.e) * heads.head_dim**-0.5,
        )  # fmt: skip

    def _constants(self, layer: int, tiling: Tiling, splits: int) -> dict[str, int]:
        heads = self._heads
        return {
            "EARLY": self.early,
            "SPLIT": splits > 1,
            "WINDOWED": heads.window(layer) > 0,
            "GROUP": heads.heads // heads.kv_heads,
            "KV_HEADS": heads.kv_heads,
            "PAGE": self._kv.page_size,
            "D": heads.head_dim,
            "WIDTH": power_of_two(heads.head_dim),
            "KEYS": tiling.keys,
            "ROWS": tiling.rows,
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
            "launch_pdl": self.early,
        }


class _Launch(NamedTuple):
    """A Triton kernel and all it is given."""

    kernel: Any
    grid: tuple[int, int, int]
    inputs: tuple[object, ...]
    constants: dict[str, int]

    def run(self) -> None:
        self.kernel[self.grid](*self.inputs, **self.constants)

    def compile(self) -> None:
        self.kernel.warmup(*self.inputs, grid=self.grid, **self.constants)


def _room(q: Tensor) -> Tensor:
    """What attention of q [T, Hq, D] is written into."""
    return torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)


def paged_attention(
    kv: PagedKV, heads: Heads, batch: Batch, queries: int, long_rows: bool, space: SplitSpace
) -> Attention:
    """`CudaAttention` of pages on a CUDA device, `ReferenceAttention` of others."""
    if kv.k_pages[0].is_cuda:
        return CudaAttention(kv, heads, batch, queries, long_rows, space)
    return ReferenceAttention(kv, batch, heads)
