"""Sums over memory that the GPUs of a host map from each other, without NCCL.

Between two H200s they took 7 to 15 % longer than NCCL's up to 64 rows of 8,192, and less for 128: a whole step does not
tell them apart. More GPUs have not been measured.

    one shot    every rank reads all of every other's summand and adds up everything: one exchange of signals
    two shots   every rank adds up its part and reads the others' sums: less to read from three ranks on

Two ranks read as much either way, so one shot is always right for them. From some size on NCCL's pipelines win.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

MAPPED_BYTES = 8 << 20
"""Largest summand that goes this way; the memory that every rank sets aside for it."""

ONE_SHOT_BYTES = {2: MAPPED_BYTES, 3: 1 << 20, 4: 512 << 10}
"""By ranks: up to this size one shot wins. More ranks: 256 KiB."""

TWO_SHOTS = (4, 8)  # ranks that torch has such kernels for

DTYPES = (torch.bfloat16, torch.float32)  # what torch's kernels take
ALIGNMENT = 16  # bytes a thread reads at once


class Summation(Protocol):
    """A way to sum some tensors."""

    def takes(self, x: Tensor) -> bool:
        """Whether x can be summed this way, by type and shape alone: all ranks decide alike."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """As `Ranks.sum`."""
        ...


class NoMappedSum:
    """Where no memory can be mapped."""

    def takes(self, x: Tensor) -> bool:
        return False

    def sum(self, x: Tensor) -> Tensor:
        raise NotImplementedError("takes nothing")


class MappedSum:
    """torch's symmetric-memory kernels over one buffer, which is free again when an operation returns on the stream."""

    def __init__(self, device: torch.device, count: int) -> None:
        import torch.distributed._symmetric_memory as symmetric

        group = dist.group.WORLD
        assert group is not None
        self._name = group.group_name
        self._one_shot = ONE_SHOT_BYTES.get(count, 256 << 10)
        self._most = MAPPED_BYTES if count in TWO_SHOTS else self._one_shot
        buffer = symmetric.empty(MAPPED_BYTES, dtype=torch.uint8, device=device)
        symmetric.rendezvous(buffer, self._name)
        self._buffers = {dtype: buffer.view(dtype) for dtype in DTYPES}

    def takes(self, x: Tensor) -> bool:
        return x.dtype in DTYPES and 0 < x.nbytes <= self._most and x.nbytes % ALIGNMENT == 0

    def sum(self, x: Tensor) -> Tensor:
        mine = self._buffers[x.dtype][: x.numel()].view(x.shape)
        # A launch of its own: the kernel that would copy too tells the others before all of its threads have copied.
        mine.copy_(x)
        if x.nbytes <= self._one_shot:
            return torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", self._name)
        return torch.ops.symm_mem.two_shot_all_reduce_out(mine, "sum", self._name, torch.empty_like(x))


def open_mapped_sum(device: torch.device, count: int) -> Summation:
    """`MappedSum` where it works on every rank, else `NoMappedSum` on every rank."""
    try:
        mapped: Summation = MappedSum(device, count)
        works = _adds_up(mapped, device, count)
    except (RuntimeError, AttributeError, ImportError):  # no peer access, no driver support, another torch
        works = False
    agreed = torch.tensor([int(works)], device=device)
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
    return mapped if int(agreed) else NoMappedSum()


def _adds_up(mapped: Summation, device: torch.device, count: int) -> bool:
    """Whether small and large tensors of both kinds come out right."""
    sizes = (64, 1 << 14, MAPPED_BYTES // 4)
    ones = [torch.ones(size, dtype=dtype, device=device) for dtype in DTYPES for size in sizes]
    return all(bool((mapped.sum(x) == count).all()) for x in ones if mapped.takes(x))
