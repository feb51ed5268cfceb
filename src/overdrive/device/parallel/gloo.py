"""`Ranks` on CPUs, over gloo on the loopback interface: slow (a millisecond an operation), to show what is right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from overdrive.device.parallel.ranks import beside_each_other, share_packed


class GlooRanks:
    """Tensors in main memory, of any dtype.

    An operation raises RuntimeError when another rank has ended, or says nothing for `patience`.
    """

    def __init__(self, store: dist.Store, rank: int, count: int, patience: timedelta) -> None:
        """Returns when all ranks are connected. store: common to them, and new."""
        gloo: Any = dist.ProcessGroupGloo  # its type stubs know the constructor alone
        options = gloo._Options()
        # Otherwise gloo listens on whatever interface the machine's name leads to.
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = patience
        self.rank = rank
        self.count = count
        self._group = gloo(store, rank, count, options)

    def sum(self, x: Tensor) -> Tensor:
        _meet(lambda: self._group.allreduce([x]))
        return x

    def gather(self, x: Tensor) -> Tensor:
        parts = x.new_empty((self.count * len(x), x.shape[1]))  # one rank below the other
        _meet(lambda: self._group._allgather_base(parts, x))
        return beside_each_other(parts, self.count)

    def share(self, *tensors: Tensor) -> None:
        share_packed(tensors, lambda packed: _meet(lambda: self._group.broadcast(packed, 0)))

    def close(self) -> None:
        """Let go of the connections."""
        self._group.shutdown()


def _meet(operation: Callable[[], Any]) -> None:
    try:
        operation().wait()
    except RuntimeError as error:  # its message is for whoever wrote gloo
        raise RuntimeError("another rank has ended, or does not answer") from error
