"""Ranks as threads of one process: what several processes do together, without them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from tests.patience import PATIENCE

Result = TypeVar("Result")


class Meeting:
    """Where threads exchange values. Raises BrokenBarrierError in all of them when one does not come."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._values: list[Any] = [None] * count
        self.held = 0

    def exchange(self, rank: int, value: Result) -> list[Result]:
        self._values[rank] = value
        self._barrier.wait(PATIENCE)
        found = list(self._values)
        self._barrier.wait(PATIENCE)
        self.held += rank == 0
        return found

    def close(self) -> None:
        self._barrier.abort()


class ThreadRanks:
    """`Ranks` over a Meeting. Tensors of different shapes or operations out of step are errors, not garbage."""

    def __init__(self, meeting: Meeting, rank: int, count: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.count = count

    def sum(self, x: Tensor) -> Tensor:
        parts = self._meeting.exchange(self.rank, ("sum", x.clone()))
        assert all(kind == "sum" and part.shape == x.shape for kind, part in parts), "ranks are out of step"
        return torch.stack([part for _, part in parts]).sum(dim=0)

    def gather(self, x: Tensor) -> Tensor:
        parts = self._meeting.exchange(self.rank, ("gather", x.clone()))
        assert all(kind == "gather" and part.shape == x.shape for kind, part in parts), "ranks are out of step"
        return torch.cat([part for _, part in parts], dim=1)

    def share(self, *tensors: Tensor) -> None:
        parts = self._meeting.exchange(self.rank, ("share", [tensor.clone() for tensor in tensors]))
        for kind, part in parts:
            assert kind == "share" and [t.shape for t in part] == [t.shape for t in tensors], "ranks are out of step"
        for tensor, found in zip(tensors, parts[0][1], strict=True):
            assert tensor.is_contiguous() and tensor.dtype == torch.int64
            tensor.copy_(found)


def together(count: int, work: Callable[[ThreadRanks], Result]) -> list[Result]:
    """What `work` returns on each of `count` ranks, which run at the same time. Raises the first error of any."""
    meeting = Meeting(count)

    def run(rank: int) -> Result:
        try:
            with torch.inference_mode():
                return work(ThreadRanks(meeting, rank, count))
        except Exception:
            meeting.close()
            raise

    return side_by_side(count, run)


def side_by_side(count: int, work: Callable[[int], Result]) -> list[Result]:
    """What `work(rank)` returns for each rank, in threads. Raises the first error of any, once all have ended."""
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(work, rank) for rank in range(count)]]
