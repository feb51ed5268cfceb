"""How long a model's products take by the tokens of a step, on a CUDA device, before anything else runs there.

Only ratios are asked of it: they say which of two sizes a step had better be padded to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from overdrive.model.transformer import Layer, Transformer

LAYERS = 4
"""Together too large for the second-level cache to keep."""

REPLAYS = 3


def time_products(model: Transformer, tokens: Iterable[int], stream: torch.cuda.Stream) -> dict[int, float]:
    """Seconds of some layers' products by tokens: the least of several replays of a graph, recorded on `stream`."""
    layers = model.layers[:LAYERS]
    found = {}
    with torch.inference_mode(), torch.cuda.stream(stream):
        for count in sorted(tokens, reverse=True):  # the largest first: later ones fit into its memory
            found[count] = _replayed(multiplying(layers, inputs(model, count)), stream)
    return found


def inputs(model: Transformer, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of layers: [tokens, hidden], [tokens, heads x head_dim], [tokens, mlp]."""
    config = model.config
    widths = (config.hidden, config.heads * config.head_dim, config.mlp)
    hidden, attended, gated = (
        torch.randn((tokens, width), device=model.device, dtype=torch.float32).to(model.dtype) for width in widths
    )
    return hidden, attended, gated


def multiplying(layers: Sequence[Layer], given: tuple[Tensor, Tensor, Tensor]) -> Callable[[], None]:
    """The four products of every layer."""
    hidden, attended, gated = given

    def multiply() -> None:
        for layer in layers:
            layer.qkv(hidden)
            layer.output(attended)
            layer.gate_up(hidden)
            layer.down(gated)

    return multiply


def _replayed(work: Callable[[], None], stream: torch.cuda.Stream) -> float:
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    graph.reset()
    return min(times)
