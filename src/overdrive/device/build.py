"""What a kind of device provides: its stream, attention, sampler and threads. The engine asks here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.config import DeviceOptions
from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cpu.attention import PagedAttention
from overdrive.device.cpu.recording import RecordedForward
from overdrive.device.cpu.sampling import CpuSampler
from overdrive.device.cpu.team import Team
from overdrive.device.runner import Forward
from overdrive.device.sampling import Sampler, sample
from overdrive.device.stream import InlineStream, Stream, ThreadStream
from overdrive.machine import usable_cores
from overdrive.model.config import ModelConfig
from overdrive.model.transformer import Hidden, Transformer


class CpuAttention:
    """`Attention` of one batch by the CPU's kernels."""

    def __init__(self, kernels: PagedAttention, kv: PagedKV, config: ModelConfig, batch: Batch) -> None:
        self._kernels = kernels
        self._kv = kv
        self._config = config
        self._writes = batch.writes
        self._attend = kernels.prepare(batch, config.heads, config.kv_heads)
        self._scale = config.head_dim**-0.5

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_pages, v_pages = self._kv.k_pages[layer], self._kv.v_pages[layer]
        self._kernels.store(k, v, k_pages, v_pages, self._writes)
        return self._attend(q, k_pages, v_pages, self._scale, self._config.window(layer))


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """Threads of this process. lookahead: steps that may be launched before the one before them is settled."""

    team: Team
    lookahead: int
    torch_device: torch.device

    @property
    def threads(self) -> int:
        """Threads that run arithmetic."""
        return self.team.threads

    def open_stream(self) -> Stream:
        """A stream for launches: a worker thread when host work is to overlap, the caller's own otherwise."""
        return ThreadStream(_one_torch_thread) if self.lookahead else InlineStream(_one_torch_thread)

    def forward(self, model: Transformer, kv: PagedKV) -> Forward:
        """The target's pass over pages `kv`: kernels, recorded where batches are small; for float64 the reference."""
        config = model.config
        if model.dtype != torch.float32:
            return lambda batch: model.forward(batch, ReferenceAttention(kv, batch, config))
        kernels = PagedAttention(self.team, config.head_dim)

        def written(batch: Batch) -> Tensor:
            return model.forward(batch, CpuAttention(kernels, kv, config, batch)).final

        def shape(batch: Batch) -> int:
            return kernels.prepare(batch, config.heads, config.kv_heads).parts

        recorded = RecordedForward(written, shape, self.team)
        return lambda batch: Hidden(recorded(batch), ())

    def sampler(self, vocab_size: int, dtype: torch.dtype) -> Sampler:
        """The fastest sampler for logits of this dtype; the reference for all but float32."""
        return CpuSampler(vocab_size, dtype, self.team) if dtype == torch.float32 else sample


def open_device(options: DeviceOptions) -> CpuDevice:
    """The device that the options mean. Host work overlaps only where asked: on few cores it fights for them."""
    threads = options.threads or usable_cores()
    _one_torch_thread()
    return CpuDevice(Team(threads), 1 if options.overlap == "on" else 0, torch.device("cpu"))


def _one_torch_thread() -> None:
    """The team's kernels do the arithmetic; torch's threads would only spin beside them (a third of a step at 4 rows).

    Belongs to the calling thread.
    """
    torch.set_num_threads(1)
