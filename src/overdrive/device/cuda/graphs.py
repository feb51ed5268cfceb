"""CUDA graphs by shape: recorded once, replayed from then on. Anything that was not recorded runs as it is written.

All graphs share one memory pool, which may give one graph's temporaries to another: what crosses between graphs lives
in tensors that were made outside of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import torch

Work = Callable[[], object]


class Graphs(Protocol):
    """Runs work of a known kind and shape. Work of equal keys must launch the same kernels on the same addresses."""

    def run(self, key: Hashable, work: Work) -> None:
        """Replay what was captured under `key`, or call `work`."""
        ...

    def capture(self, key: Hashable, work: Work) -> None:
        """Record `work` under `key`, unless that is recorded.

        It runs twice: as it is, so that whatever compiles or allocates has done so, and to be recorded.
        """
        ...

    def clear(self) -> None:
        """Forget everything. Before connections that graphs use are closed: those wait for the graphs."""
        ...


class NoGraphs:
    """Runs everything as it is written."""

    def run(self, key: Hashable, work: Work) -> None:
        work()

    def capture(self, key: Hashable, work: Work) -> None:
        pass

    def clear(self) -> None:
        pass


class CudaGraphs:
    """`Graphs` on the current CUDA device; used on the stream that replays them."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, work: Work) -> None:
        graph = self._graphs.get(key)
        if graph is None:
            work()
        else:
            graph.replay()

    def capture(self, key: Hashable, work: Work) -> None:
        if key in self._graphs:
            return
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        self._graphs[key] = graph

    def clear(self) -> None:
        self._stream.synchronize()
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
