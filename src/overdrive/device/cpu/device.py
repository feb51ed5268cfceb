"""The CPU as a device: threads of this process, and the runner that makes a step's tensors as large as the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from overdrive.config import EngineOptions
from overdrive.device.attention.reference import Heads, PagedKV, ReferenceAttention
from overdrive.device.base import Parts, impose
from overdrive.device.batch import Batch
from overdrive.device.costs import CostSizes, whole_pages
from overdrive.device.cpu.attention import PagedAttention
from overdrive.device.cpu.precompile import Precompiler
from overdrive.device.cpu.recording import RecordedPass
from overdrive.device.cpu.sampling import CpuSampler
from overdrive.device.cpu.steps import CpuSteps
from overdrive.device.cpu.team import Team
from overdrive.device.parallel.following import undrawn
from overdrive.device.runner import Forward, Runner
from overdrive.device.sampling import Sampler, SamplingState, sample
from overdrive.device.state import SlotState
from overdrive.device.steps import Steps
from overdrive.device.stream import InlineStream, Stream, ThreadStream, Wait, synchronize
from overdrive.draft.room import Room
from overdrive.limits import Limits
from overdrive.machine import available_bytes, processor, usable_cores
from overdrive.model.transformer import Transformer
from overdrive.progress import Progress

Result = TypeVar("Result")

KV_SHARE = 0.3

ROWS, STEP_TOKENS, CHUNK = 64, 1024, 256

COST_ROWS = (1, 4, 16, 64)
"""Rows of steps that are timed at start; costs rise evenly between."""

COST_TOKENS = 128
"""Most tokens of those steps; costs rise in proportion beyond."""

COST_SECONDS = 4.0


class CpuAttention:
    """`Attention` of one batch by the CPU's kernels."""

    def __init__(self, kernels: PagedAttention, kv: PagedKV, heads: Heads, batch: Batch) -> None:
        self._kernels = kernels
        self._kv = kv
        self._heads = heads
        self._writes = batch.writes
        self._attend = kernels.prepare(batch, heads.heads, heads.kv_heads)
        self._scale = heads.head_dim**-0.5

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, k, v)
        k_pages, v_pages = self._kv.k_pages[layer], self._kv.v_pages[layer]
        return self._attend(q, k_pages, v_pages, self._scale, self._heads.window(layer))

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """As `Stores`."""
        self._kernels.store(k, v, self._kv.k_pages[layer], self._kv.v_pages[layer], self._writes)


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """Threads of this process. lookahead: steps that may be launched before the one before them is settled."""

    team: Team
    lookahead: int
    torch_device: torch.device
    precompiler: Precompiler = field(default_factory=Precompiler)

    @property
    def name(self) -> str:
        """The processor."""
        return processor()

    @property
    def threads(self) -> int:
        """Threads that run arithmetic."""
        return self.team.threads

    @property
    def mask_threads(self) -> int:
        """One: a mask takes some 25 us, and where cores are few two threads wait for each other and for others."""
        return 1

    @property
    def writes_ahead(self) -> bool:
        """Where each step is settled before the next is built, its rows say what follows."""
        return self.lookahead > 0

    @property
    def steps(self) -> Steps:
        """The bookkeeping around the model."""
        return CpuSteps()

    def resolve(self, options: EngineOptions) -> EngineOptions:
        """`options` with this device's own number wherever they leave one open."""
        given = options.scheduler
        rows = given.max_rows or min(ROWS, given.max_step_tokens or ROWS)  # each feeds a token
        tokens = given.max_step_tokens or max(STEP_TOKENS, rows)
        chunk = given.chunk or CHUNK
        return replace(options, scheduler=replace(given, max_rows=rows, max_step_tokens=tokens, chunk=chunk))

    @property
    def kv_share(self) -> float:
        """Others use this memory too."""
        return KV_SHARE

    def cost_sizes(self, limits: Limits) -> CostSizes:
        """Few sizes; reading texts is slow here, and memory is claimed by what is read."""
        return CostSizes(
            rows=tuple(sorted({*(r for r in COST_ROWS if r < limits.max_rows), limits.max_rows})),
            most_tokens=COST_TOKENS,
            short=whole_pages(64, limits.page_size),
            long=whole_pages(512, limits.page_size),
            texts=min(2, limits.max_rows),
            long_rows=min(4, limits.max_rows),
            seconds=COST_SECONDS,
            padded=False,
        )

    def free_bytes(self, options: EngineOptions, model: Transformer) -> int:
        """Memory that can be taken without swapping; all ranks take from the same."""
        return available_bytes() // options.device.tensor_parallel

    def open_runner(self, parts: Parts, stream: Stream, progress: Progress) -> Runner:
        """The device's side: slots, pages, sampler and drafter around a model."""
        progress("kernels", 0, 1)
        model, limits = parts.model, parts.limits
        kv = PagedKV.allocate(model.config, parts.n_pages, limits.page_size, model.dtype)
        state = SlotState(limits.max_rows, limits.max_model_len, limits.page_size)
        sampling = SamplingState(limits.max_rows, model.config.vocab, model.dtype)
        sampler = undrawn if parts.ranks.rank else self.sampler(model.config.vocab, model.dtype)
        self.precompiler.wait()  # only now: attention was compiled here meanwhile
        drafter = parts.choice.open(Room(self, state, sampling, sampler, parts.n_pages))
        divided = parts.ranks.count > 1
        forward = written_out(model, kv, drafter.taps) if divided else self.forward(model, kv, drafter.taps)
        progress("kernels", 1, 1)
        imposed = impose(parts.options.draft.simulate_acceptance, sampling, parts.drafts)
        rest = stream, self.steps, parts.ranks, imposed, parts.drafts, self.writes_ahead
        return Runner(forward, model.logits, state, sampling, sampler, drafter, *rest)

    def open_stream(self, wait: Wait = synchronize) -> Stream:
        """A stream for launches: a worker thread when host work is to overlap, the caller's own otherwise.

        What launches wait for raises errors by itself.
        """
        return ThreadStream(_one_torch_thread) if self.lookahead else InlineStream(_one_torch_thread)

    def forward(self, model: Transformer, kv: PagedKV, taps: Sequence[int] = ()) -> Forward:
        """The target's pass over pages `kv`, with the residual stream on entry to the layers `taps`."""
        return self.record(lambda batch, attention: model.score(batch, attention, taps), kv, model.config)

    def record(self, pass_: Callable[..., Result], kv: PagedKV, heads: Heads) -> Callable[..., Result]:
        """`pass_(batch, attention, *inputs)` as a function of (batch, *inputs): for float32 with this device's
        attention over pages `kv`, recorded where batches are small; for float64 the reference.

        A pass that is to be recorded computes with the device's `Ops` and linears alone (torch may slice and view), and
        what it needs beside the batch comes as inputs, [n, width] of the model's type. Its result, a tensor or a tuple
        of tensors, is good until the next call.
        """
        if kv.k_pages[0].dtype != torch.float32:
            return lambda batch, *inputs: pass_(batch, ReferenceAttention(kv, batch, heads), *inputs)
        kernels = PagedAttention(self.team, heads.head_dim)

        def written(batch: Batch, *inputs: Tensor) -> Result:
            return pass_(batch, CpuAttention(kernels, kv, heads, batch), *inputs)

        def shape(batch: Batch) -> int:
            return kernels.divide(batch, heads.heads, heads.kv_heads)[2]

        return RecordedPass(written, shape, self.team)

    def sampler(self, vocab_size: int, dtype: torch.dtype) -> Sampler:
        """The fastest sampler for logits of this dtype; the reference for all but float32."""
        return CpuSampler(vocab_size, dtype, self.team) if dtype == torch.float32 else sample


def written_out(model: Transformer, kv: PagedKV, taps: Sequence[int]) -> Forward:
    """The pass as it is written, nothing of it recorded: what ranks exchange cannot be."""
    return lambda batch: model.score(batch, ReferenceAttention(kv, batch, model.config), taps)


def open_cpu(threads: int, overlap: bool, precompiler: Precompiler | None = None) -> CpuDevice:
    """The CPU with so many threads, 0 for all cores. Host work overlaps where asked: on few cores it fights for them.

    precompiler: one that was started earlier, so that it has a lead.
    """
    _one_torch_thread()
    team = Team(threads or usable_cores())
    return CpuDevice(team, 1 if overlap else 0, torch.device("cpu"), precompiler or Precompiler())


def _one_torch_thread() -> None:
    """The team's kernels do the arithmetic; torch's threads would only spin beside them (a third of a step at 4 rows).

    Belongs to the calling thread.
    """
    torch.set_num_threads(1)
