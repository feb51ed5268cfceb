"""What several benchmarks need: a controller with a dial, and the time of a call inside a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from overdrive.policy.controller import Controller, LoadView
from overdrive.types import Plan, Why


class Dial(Controller):
    """A controller whose K the benchmark sets."""

    plans = tuple(range(1, 16))

    def __init__(self) -> None:
        self.drafts = 0

    def choose(self, view: LoadView) -> Plan:
        return Plan(self.drafts, Why(rule="dial"))


def replayed_us(work: Callable[[], object], calls: int = 4, replays: int = 10) -> float:
    """Microseconds of one call on a CUDA device: a graph of `calls`, replayed; the median of five batches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / replays / calls)
    return statistics.median(times)
