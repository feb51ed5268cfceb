"""A forward pass on the CPU, recorded once per shape and then run in one native call.

The Python between the kernels of a small model's step costs as much as several layers, and every return from a kernel
has to win the interpreter lock back from the host's thread. So the first pass of a shape notes its kernels and argument
blocks, with the batch in memory that stays and results in memory of the recording's own; later passes copy the batch
there and run the list. It is what a CUDA graph is on a GPU.

A pass is `pass_(batch, *inputs) -> result`: inputs are float32 matrices beside the batch, the result a tensor or a
tuple of tensors. All it is given lies in memory that stays, so it may use any field of the batch.

Whatever torch itself computes inside a pass would be missing from the list. The first recording is watched for that,
and a model that needs torch for more than views is run as it is written. (Functions are watched rather than operators:
torch's watch over operators imports its compiler, which takes more than a second.)
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from overdrive.device.batch import Batch
from overdrive.device.cpu.copies import WORDS, copy_blocks
from overdrive.device.cpu.team import Call, Team

RECORDED_TOKENS = 64  # batches up to this size; in larger ones Python does not count
PROGRAMS = 128  # shapes remembered
FIXED, INPUTS = 9, 4  # fields of a batch; inputs beside it, at most
BLOCKS = FIXED + INPUTS


_VIEWS = (Tensor.view, Tensor.split, Tensor.split_with_sizes, Tensor.chunk, Tensor.narrow)
_QUESTIONS = (Tensor.stride, Tensor.size, Tensor.dim, Tensor.data_ptr, Tensor.numpy, Tensor.__len__)
_HARMLESS = frozenset((*_VIEWS, *_QUESTIONS))
"""Functions that compute nothing: views of a tensor and questions about it; and attributes and slices."""

Result = TypeVar("Result")


class NotRecordable(Exception):
    """The pass computes something with torch."""


class Arena:
    """Float32 memory that is used again as soon as no tensor refers to it, and never given back."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._all: dict[int, Tensor] = {}  # by address

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        size = int(np.prod(shape))
        room = 1 << max(10, (size - 1).bit_length())
        free = self._free.setdefault(room, [])
        buffer = free.pop() if free else self._add(room)
        # torch keeps this very view alive as long as any tensor shares the storage.
        view = buffer[:size].reshape(shape)
        weakref.finalize(view, free.append, buffer).atexit = False
        return torch.from_numpy(view)

    def unheld(self, x: Tensor) -> Tensor:
        """The same tensor, but its memory may be used again as soon as no other tensor refers to it."""
        place = self._all[x.untyped_storage().data_ptr()]
        return place.as_strided(x.shape, x.stride(), x.storage_offset())

    def _add(self, room: int) -> np.ndarray:
        buffer = np.empty(room, dtype=np.float32)
        self._all[buffer.ctypes.data] = torch.from_numpy(buffer)
        return buffer


class StaticBatch:
    """Memory that stays, into which batches and the inputs beside them are copied, by one native call."""

    def __init__(self, team: Team, tokens: int, rows: int, pages: int) -> None:
        self.pages = pages
        self._capacity = tokens
        self._inputs: dict[tuple[int, int], Tensor] = {}  # (which, width) -> memory that stays
        self._call = Call(team, copy_blocks(), "q" * (1 + WORDS * BLOCKS))
        self._ids, self._positions, self._rows, self._writes = torch.zeros((4, tokens), dtype=torch.int64)
        self._offsets = torch.zeros(rows + 1, dtype=torch.int64)
        self._table = torch.zeros((rows, pages), dtype=torch.int32)
        self._starts = torch.zeros(rows, dtype=torch.int64)
        self._gaps = torch.zeros((rows, 2), dtype=torch.int64)
        self._wanted = torch.zeros(tokens, dtype=torch.int64)

    def fill(self, batch: Batch, inputs: Sequence[Tensor] = ()) -> None:
        """Copy them here. inputs: at most INPUTS, [n, width] float32 with rows of any stride."""
        rows, starts, wanted = batch.rows.contiguous(), batch.starts.contiguous(), batch.wanted.contiguous()
        ids, positions, writes = batch.ids.contiguous(), batch.positions.contiguous(), batch.writes.contiguous()
        offsets, gaps, table = batch.offsets.contiguous(), batch.gaps.contiguous(), batch.page_table
        table = table if table.stride(1) == 1 else table.contiguous()
        tokens = 8 * len(ids)
        words = [
            *(ids.data_ptr(), 0, self._ids.data_ptr(), 0, 1, tokens),
            *(positions.data_ptr(), 0, self._positions.data_ptr(), 0, 1, tokens),
            *(rows.data_ptr(), 0, self._rows.data_ptr(), 0, 1, tokens),
            *(writes.data_ptr(), 0, self._writes.data_ptr(), 0, 1, tokens),
            *(offsets.data_ptr(), 0, self._offsets.data_ptr(), 0, 1, 8 * len(offsets)),
            *(starts.data_ptr(), 0, self._starts.data_ptr(), 0, 1, 8 * len(starts)),
            *(gaps.data_ptr(), 0, self._gaps.data_ptr(), 0, 1, 16 * len(gaps)),
            *(wanted.data_ptr(), 0, self._wanted.data_ptr(), 0, 1, 8 * len(wanted)),
            *(table.data_ptr(), 4 * table.stride(0), self._table.data_ptr(), 4 * self.pages, *_size(table)),
        ]
        kept = [x if x.stride(1) == 1 else x.contiguous() for x in inputs]
        for which, x in enumerate(kept):
            place = self._input(which, x.shape[1])
            words += (x.data_ptr(), 4 * x.stride(0), place.data_ptr(), 4 * x.shape[1], *_size(x))
        count = FIXED + len(kept)
        self._call.alone(count, *words, *[0] * (WORDS * (BLOCKS - count)))

    def views(self, batch: Batch, inputs: Sequence[Tensor]) -> tuple[Batch, list[Tensor]]:
        """What `fill` has copied, in this memory."""
        tokens, (rows, pages) = len(batch.ids), batch.page_table.shape
        static = Batch(
            ids=self._ids[:tokens],
            positions=self._positions[:tokens],
            rows=self._rows[:tokens],
            offsets=self._offsets[: rows + 1],
            page_table=self._table[:rows, :pages],
            writes=self._writes[:tokens],
            starts=self._starts[:rows],
            gaps=self._gaps[:rows],
            wanted=self._wanted[: len(batch.wanted)],
        )
        return static, [self._input(which, x.shape[1])[: len(x)] for which, x in enumerate(inputs)]

    def _input(self, which: int, width: int) -> Tensor:
        place = self._inputs.get((which, width))
        if place is None:
            place = self._inputs[which, width] = torch.zeros((self._capacity, width))
        return place


def _size(x: Tensor) -> tuple[int, int]:
    """Rows, and bytes of one, of a matrix of 4-byte elements."""
    return x.shape[0], 4 * x.shape[1]


class Recording(Generic[Result]):
    """Notes one pass (it is a `Recorder` of the team) and can run it again.

    It does not hold its result's memory: recordings of one arena write over each other's, as intermediates or results.
    """

    def __init__(self, team: Team, arena: Arena) -> None:
        self._team = team
        self._arena = arena
        self._words: list[tuple[int, int, int]] = []
        self._blocks: list[ctypes.Array[ctypes.c_char]] = []

    def note(self, kernel: int, arguments: bytes, together: bool) -> None:
        block = ctypes.create_string_buffer(arguments, len(arguments))
        self._blocks.append(block)
        self._words.append((kernel, ctypes.addressof(block), int(together)))

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return self._arena.empty(shape)

    def make(self, forward: Callable[[], Result], watch: AbstractContextManager[object]) -> Result:
        """Run the pass under `watch` and note it."""
        with self._team.recorded(self), watch:
            result = forward()
        self._program = np.array(self._words, dtype=np.int64)
        self._result = _each(self._arena.unheld, result)
        return result

    def run(self) -> Result:
        """The pass again, over what stands in the static memory now; the result lies where it lay before."""
        self._team.run(self._program.ctypes.data, len(self._program))
        return self._result


def _each(change: Callable[[Tensor], Tensor], result: Any) -> Any:
    """A tensor changed, or each of a (named) tuple's."""
    if isinstance(result, Tensor):
        return change(result)
    changed = [change(x) for x in result]
    return type(result)(*changed) if hasattr(result, "_fields") else tuple(changed)


class Watch(TorchFunctionMode):
    """Raises NotRecordable where torch would compute something."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if func in _HARMLESS or name == "__get__" or (name == "__getitem__" and _slices(args[1])):
            return func(*args, **(kwargs or {}))
        raise NotRecordable(f"the pass computes {func} with torch")


def _slices(index: Any) -> bool:
    """Whether a tensor indexed so is a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(isinstance(part, slice | int) for part in parts)


class RecordedPass(Generic[Result]):
    """pass_(batch, *inputs), from recordings where there are some. Results are good until the next call.

    pass_: the pass as it is written; inputs: [rows, width] float32 each, at most RECORDED_TOKENS rows where recorded.
    shape: what beside the sizes of batch and inputs decides which kernels it runs.
    """

    def __init__(self, pass_: Callable[..., Result], shape: Callable[[Batch], Hashable], team: Team) -> None:
        self._pass = pass_
        self._shape = shape
        self._team = team
        self._arena = Arena()
        self._static = StaticBatch(team, RECORDED_TOKENS, RECORDED_TOKENS, 64)
        self._recordings: OrderedDict[Hashable, Recording[Result]] = OrderedDict()
        self._recordable = True
        self._watched = False

    def __call__(self, batch: Batch, *inputs: Tensor) -> Result:
        tokens, rows = len(batch.ids), len(batch.page_table)
        most = max(tokens, rows, *map(len, inputs))
        if not self._recordable or not tokens or most > RECORDED_TOKENS:
            return self._pass(batch, *inputs)
        if batch.page_table.shape[1] > self._static.pages:
            self._widen(batch.page_table.shape[1])
        self._static.fill(batch, inputs)
        key = tokens, rows, len(batch.wanted), tuple(x.shape for x in inputs), self._shape(batch)
        if key in self._recordings:
            self._recordings.move_to_end(key)
            return self._recordings[key].run()
        return self._record(key, *self._static.views(batch, inputs))

    def _record(self, key: Hashable, static: Batch, inputs: list[Tensor]) -> Result:
        recording: Recording[Result] = Recording(self._team, self._arena)
        try:
            watch = nullcontext() if self._watched else Watch()
            result = recording.make(lambda: self._pass(static, *inputs), watch)
        except NotRecordable:
            self._recordable = False
            return self._pass(static, *inputs)
        self._watched = True
        self._recordings[key] = recording
        if len(self._recordings) > PROGRAMS:
            self._recordings.popitem(last=False)
        return result

    def _widen(self, pages: int) -> None:
        """Rows have grown beyond the static page table; recordings name the old one."""
        self._recordings.clear()
        self._static = StaticBatch(self._team, RECORDED_TOKENS, RECORDED_TOKENS, 2 * pages)
