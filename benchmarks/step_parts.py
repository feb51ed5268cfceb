"""Time of each part of the target's pass on the CPU, by number of token rows of one request, taps included.

    PYTHONPATH=src python benchmarks/step_parts.py [--threads 2] [--rows 1,2,3,4] [--context 128] [--rounds 60]

Shapes and weight formats are SmolLM2-135M's, weights random. Every part is recorded as in a step, all layers of it,
and run without Python between its kernels. Parts and numbers of rows take turns at random; printed are the milliseconds
that a fifth of the runs stay below, since a machine that others use has slow moments but no fast ones. A part alone
finds its weights in the caches more often than in a step: `all` takes longer than the sum of its parts.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from contextlib import nullcontext

import gguf
import numpy as np
import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cpu.attention import PagedAttention
from overdrive.device.cpu.elementwise import CpuOps
from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.packing import pack_gguf
from overdrive.device.cpu.recording import Arena, Recording
from overdrive.device.cpu.team import Team

LAYERS, HIDDEN, MLP, HEADS, KV_HEADS, DIMS, VOCAB, PAGE = 30, 576, 1536, 9, 3, 64, 49152, 16
TAPS = 3
SHAPES = {
    "qkv": ((HEADS + 2 * KV_HEADS) * DIMS, HIDDEN),
    "output": (HIDDEN, HIDDEN),
    "gate_up": (2 * MLP, HIDDEN),
    "down": (HIDDEN, MLP),
}


class Network:
    """The parts of a pass; each is a function of the batch that does its work for all layers."""

    def __init__(self, team: Team, context: int) -> None:
        kernels = LinearKernels(team)
        rng = np.random.default_rng(0)

        def linear(kind: gguf.GGMLQuantizationType, outputs: int, inputs: int) -> PackedLinear:
            weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
            return PackedLinear(kernels, pack_gguf(gguf.quantize(weight, kind), kind, outputs, inputs))

        four, eight = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
        self.layers = [{name: linear(four, *shape) for name, shape in SHAPES.items()} for _ in range(LAYERS)]
        self.head = linear(eight, VOCAB, HIDDEN)
        self.ops, self.attention = CpuOps(team), PagedAttention(team, DIMS)
        pages = -(-context // PAGE) + 1
        self.pages = [[torch.randn(pages, KV_HEADS, PAGE, DIMS) for _ in range(2)] for _ in range(LAYERS)]
        self.norm, self.angles = torch.ones(HIDDEN), torch.randn(context, DIMS // 2)
        self.x = {width: torch.randn(16, width) for width in (HIDDEN, MLP, 2 * MLP, SHAPES["qkv"][0])}

    def linears(self, name: str, batch: Batch) -> None:
        x = self.x[SHAPES[name][1]][: len(batch.ids)]
        for layer in self.layers:
            layer[name](x)

    def attend(self, batch: Batch) -> None:
        q, k, v = self._heads(batch)
        prepared = self.attention.prepare(batch, HEADS, KV_HEADS)
        for pages in self.pages:
            self.attention.store(k, v, *pages, batch.writes)
            prepared(q, *pages, 0.1)

    def elementwise(self, batch: Batch) -> None:
        tokens, (q, k, _) = len(batch.ids), self._heads(batch)
        for _ in self.layers:
            self.ops.rope(q, k, batch.positions, self.angles, self.angles)
            self.ops.silu_mul(self.x[2 * MLP][:tokens])
            for _ in range(2):
                self.ops.rms_norm(self.x[HIDDEN][:tokens], self.norm, 1e-5)

    def taps(self, batch: Batch) -> None:
        tapped = self.ops.empty(len(batch.ids), TAPS * HIDDEN)
        for columns in tapped.chunk(TAPS, 1):
            self.ops.copy(self.x[HIDDEN][: len(batch.ids)], columns)

    def logits(self, batch: Batch) -> None:
        self.head(self.x[HIDDEN][: len(batch.ids)])

    def everything(self, batch: Batch) -> None:
        """In a step's order, so that every weight is met once."""
        tokens, (q, k, v) = len(batch.ids), self._heads(batch)
        prepared = self.attention.prepare(batch, HEADS, KV_HEADS)
        for layer, pages in zip(self.layers, self.pages, strict=True):
            layer["qkv"](self.ops.rms_norm(self.x[HIDDEN][:tokens], self.norm, 1e-5))
            self.ops.rope(q, k, batch.positions, self.angles, self.angles)
            self.attention.store(k, v, *pages, batch.writes)
            layer["output"](prepared(q, *pages, 0.1))
            layer["gate_up"](self.ops.rms_norm(self.x[HIDDEN][:tokens], self.norm, 1e-5))
            layer["down"](self.ops.silu_mul(self.x[2 * MLP][:tokens]))
        self.logits(batch)

    def parts(self) -> dict[str, Callable[[Batch], None]]:
        linears = {name: lambda batch, name=name: self.linears(name, batch) for name in SHAPES}
        rest = {"attention": self.attend, "elementwise": self.elementwise, "taps": self.taps, "head": self.logits}
        return {**linears, **rest, "all": self.everything}

    def _heads(self, batch: Batch) -> tuple[Tensor, ...]:
        qkv = self.x[SHAPES["qkv"][0]][: len(batch.ids)].view(-1, HEADS + 2 * KV_HEADS, DIMS)
        return qkv.split_with_sizes((HEADS, KV_HEADS, KV_HEADS), dim=1)


def last_tokens(count: int, context: int) -> Batch:
    """The last `count` tokens of one request."""
    positions, pages = torch.arange(context - count, context), -(-context // PAGE)
    table = torch.arange(1, pages + 1, dtype=torch.int32).view(1, pages)
    return Batch(
        ids=torch.zeros_like(positions),
        positions=positions,
        rows=torch.zeros_like(positions),
        offsets=torch.tensor([0, count]),
        page_table=table,
        starts=torch.tensor([0]),
        gaps=torch.tensor([[0, 0]]),
        writes=table[0, positions // PAGE].long() * PAGE + positions % PAGE,
        wanted=torch.arange(count),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,2,3,4")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    team, rows = Team(options.threads), [int(n) for n in options.rows.split(",")]
    network = Network(team, options.context)
    recordings: dict[tuple[str, int], Recording[tuple[()]]] = {}
    batches = {n: last_tokens(n, options.context) for n in rows}  # recordings read them where they lie
    for name, part in network.parts().items():
        for n, batch in batches.items():
            recordings[name, n] = Recording(team, Arena())
            recordings[name, n].make(lambda part=part, batch=batch: part(batch) or (), nullcontext())
    times: dict[tuple[str, int], list[float]] = {cell: [] for cell in recordings}
    for _ in range(options.rounds):
        for cell in random.sample(sorted(recordings), len(recordings)):
            started = time.perf_counter()
            recordings[cell].run()
            times[cell].append(time.perf_counter() - started)
    print(f"{'rows':>12}" + "".join(f"{n:>9}" for n in rows) + f"{'last/first':>12}")
    for name in network.parts():
        best = [sorted(times[name, n])[options.rounds // 5] * 1e3 for n in rows]
        print(f"{name:>12}" + "".join(f"{t:9.3f}" for t in best) + f"{best[-1] / best[0]:12.2f}")


if __name__ == "__main__":
    main()
