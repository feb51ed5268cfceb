"""`Ranks` on the GPUs of one host, over NCCL; sums of a few tokens over memory that the GPUs map from each other.

NVLink multicast stays off (`ENVIRONMENT`): it gains little at these sizes, and where GPUs are lent out by a
hypervisor a program that uses it can leave them unusable.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from overdrive.device.parallel.ranks import beside_each_other, share_packed
from overdrive.device.parallel.symmetric import NoMappedSum, Summation, open_mapped_sum

ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_SOCKET_IFNAME": "lo",  # ranks are processes of one host: nothing listens to the network
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",  # a rank that is gone ends what waits for it, not this process
}
"""What every process of a group must have in its environment before it first touches CUDA."""


CLOSE_SECONDS = 5.0


class NcclRanks:
    """Tensors on this rank's GPU. Operations run on the current stream and can be captured, once each has run."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        count: int,
        device: torch.device,
        patience: timedelta,
        mapped: bool = True,
    ) -> None:
        """Returns when all ranks are connected. store: common to them, and new. device: a GPU that no other rank has.

        mapped: sum small tensors over mapped memory, where that can be set up. One group a process: torch keeps it.
        """
        os.environ.update(ENVIRONMENT)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=count, timeout=patience, device_id=device)
        self.rank = rank
        self.count = count
        self.mapped: Summation = open_mapped_sum(device, count) if mapped else NoMappedSum()
        self._warm(device)

    def sum(self, x: Tensor) -> Tensor:
        if self.mapped.takes(x):
            return self.mapped.sum(x)
        dist.all_reduce(x)
        return x

    def gather(self, x: Tensor) -> Tensor:
        parts = x.new_empty((self.count * len(x), x.shape[1]))  # one rank below the other
        dist.all_gather_into_tensor(parts, x)
        return beside_each_other(parts, self.count)

    def share(self, *tensors: Tensor) -> None:
        share_packed(tensors, lambda packed: dist.broadcast(packed, 0))

    def close(self) -> None:
        """Let go of the connections, without waiting long for ranks that may be gone."""
        abort = threading.Thread(target=dist.distributed_c10d._abort_process_group, daemon=True)
        abort.start()
        abort.join(CLOSE_SECONDS)

    def _warm(self, device: torch.device) -> None:
        """NCCL sets up its channels at the first operation of a kind, which must not fall into a capture."""
        x = torch.zeros((1, 1), dtype=torch.int64, device=device)
        dist.all_reduce(x)
        self.gather(x)
        self.share(x)
        torch.cuda.synchronize(device)
