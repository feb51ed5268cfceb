"""What a kind of device provides: its stream, attention, sampler and threads. The engine asks here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from overdrive.config import DeviceOptions
from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.cpu.sampling import CpuSampler
from overdrive.device.runner import Attend
from overdrive.device.sampling import Sampler, sample
from overdrive.device.stream import InlineStream, Stream, ThreadStream
from overdrive.machine import usable_cores
from overdrive.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """Threads of this process. lookahead: steps that may be launched before the one before them is settled."""

    threads: int
    lookahead: int
    torch_device: torch.device

    def open_stream(self) -> Stream:
        """A stream whose launches run with this device's threads: on a worker when host work is to overlap."""

        def setup() -> None:
            torch.set_num_threads(self.threads)

        return ThreadStream(setup) if self.lookahead else InlineStream(setup)

    def attention(self, kv: PagedKV, config: ModelConfig) -> Attend:
        """Attention over `kv`, bound to one batch at a time."""
        return lambda batch: ReferenceAttention(kv, batch, config)

    def sampler(self, vocab_size: int, dtype: torch.dtype) -> Sampler:
        """The fastest sampler for logits of this dtype; the reference for all but float32."""
        return CpuSampler(vocab_size, dtype, self.threads) if dtype == torch.float32 else sample


def open_device(options: DeviceOptions) -> CpuDevice:
    """The device that the options mean. Host work overlaps only where asked: on few cores it fights for them."""
    threads = options.threads or usable_cores()
    return CpuDevice(threads, 1 if options.overlap == "on" else 0, torch.device("cpu"))
