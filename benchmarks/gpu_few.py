"""Time of a layer's products for few tokens on a CUDA device: the library's or ours; and how far their results differ.

    PYTHONPATH=src python benchmarks/gpu_few.py [--chain] [--plain] [--hidden 4096] [--mlp 14336] [--qkv 6144]

Looks for the best tiling of every product: compiles in parallel, compares each with float64 products, drops what fails,
times the rest at 1 and 16 tokens (tiles of 16 rows, one tiling for all numbers of tokens up to that) or at 32, and
prints the best as lines for `few.MEASURED`, with microseconds by tokens and TB/s of weights at the fewest. `library` is
the same work as it is done otherwise: a product, and the activation where there is one. Then whole layers, norm to
norm, without attention: by the library and by the tilings that were found.
Last, the share of elements that differ between the two in the residual stream and in its norm, after one layer and
after eight, from random hidden states; `library, 64 rows` is the library against itself, alone and among 64 rows.
--chain: the layers alone, by the built-in tilings. --plain: no tensor descriptors. Every replay goes through eight
layers' weights, so that none stays in the second-level cache. A few minutes; --chain 20 s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.device.cuda.few import HEIGHTS, Choose, FewProducts, Kind, Tiling, choose_tiling, room_of
from overdrive.device.cuda.ops import CudaOps
from overdrive.model.transformer import DenseLinear, Linear

DEVICE, DTYPE, EPS = torch.device("cuda"), torch.bfloat16, 1e-5
LAYERS, CALLS = 8, 32
MANY = 64
"""Rows of a step whose products are the library's."""
TOKENS = (1, 4, 8, 16, 32)
SEARCHED = {16: (1, 16), 32: (32,)}
"""Tokens that tilings are ranked at, by rows of a tile."""
COMPILERS = 14
SHARED_BYTES = 227 << 10
"""Of a program on Hopper."""
PROGRAMS = {"project": (90, 400), "gate": (100, 900)}
"""Programs of a launch, least and most, that are worth a try."""
KEPT = 12
"""Of the tilings for 16 rows, so many of the best are tried for 32."""

# (width, depth, warps, stages) by (first, mapped)
TRIALS: dict[tuple[bool, bool], Sequence[tuple[int, int, int, int]]] = {
    (False, False): [
        (16, 256, 2, 4), (16, 256, 2, 6), (16, 512, 4, 3), (16, 512, 4, 4), (32, 128, 4, 3), (32, 128, 4, 5),
        (32, 256, 4, 3), (32, 256, 4, 4), (32, 256, 4, 6), (32, 512, 8, 3), (64, 128, 4, 3), (64, 128, 4, 4),
        (64, 256, 8, 3), (64, 64, 4, 5),
    ],
    (True, False): [(64, 64, 4, 5), (64, 128, 4, 3), (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4)],
    (False, True): [(32, 128, 4, 4), (32, 256, 4, 4), (64, 128, 4, 4)],
    (True, True): [(64, 64, 4, 4), (64, 64, 4, 6), (64, 128, 4, 3), (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4)],
}  # fmt: skip
SPLITS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Case:
    """A product as `few.Choose` names it."""

    kind: Kind
    outputs: int
    inputs: int

    @property
    def rows(self) -> int:
        """Of the weight."""
        return self.outputs * (2 if self.kind == "gate" else 1)

    @property
    def bytes(self) -> int:
        return self.rows * self.inputs * DTYPE.itemsize

    def built_in(self, height: int) -> Tiling:
        return choose_tiling(self.kind, self.outputs, self.inputs, height, room_of(DEVICE))

    def trials(self, mapped: bool) -> list[Tiling]:
        """Tilings that fit and make about as many programs as run at once."""
        found = []
        for (first, by_map), sizes in TRIALS.items():
            for (width, depth, warps, stages), splits in product(sizes, SPLITS if self.kind == "project" else (1,)):
                tiling = Tiling(width, depth, splits, warps, stages, first, by_map)
                programs = -(-self.outputs // width) * splits
                fits = tiling.shared_bytes(self.kind, HEIGHTS[0]) + 1024 <= SHARED_BYTES
                if fits and PROGRAMS[self.kind][0] <= programs <= PROGRAMS[self.kind][1] and (mapped or not by_map):
                    found.append(tiling)
        return found


class Bench:
    """Weights of a product in several layers, and what else its launches read."""

    def __init__(self, case: Case, layers: int = LAYERS) -> None:
        self.case = case
        self.linears = [linear(case.rows, case.inputs) for _ in range(layers)]
        self.ops = CudaOps(DTYPE, DEVICE)

    def ours(self, tokens: int, tiling: Tiling) -> list[Callable[[], object]]:
        """The launch in every layer."""
        made, x = self.made(tiling), drawn(tokens, self.case.inputs)
        return [partial(made, each, x) for each in self.linears]

    def made(self, tiling: Tiling) -> Callable[[DenseLinear, Tensor], Tensor]:
        """The product by such a tiling."""
        products = FewProducts(DEVICE, lambda *_: tiling)
        return products.project if self.case.kind == "project" else products.gate

    def library(self, tokens: int) -> list[Callable[[], object]]:
        x = drawn(tokens, self.case.inputs)
        if self.case.kind == "project":
            return [partial(each, x) for each in self.linears]
        return [lambda each=each: self.ops.silu_mul(each(x)) for each in self.linears]

    def error(self, tokens: int, tiling: Tiling) -> float:
        """Of the first layer's result, relative to that of float64."""
        each, x = self.linears[0], drawn(tokens, self.case.inputs)
        found, exact = self.made(tiling)(each, x).double(), x.double() @ each.weight.double().t()
        if self.case.kind == "gate":
            gate, up = exact.chunk(2, dim=1)
            exact = torch.nn.functional.silu(gate) * up
        return float((found - exact).norm() / exact.norm())


def linear(outputs: int, inputs: int) -> DenseLinear:
    return DenseLinear((torch.randn((outputs, inputs), device=DEVICE, dtype=DTYPE)).mul_(inputs**-0.5))


def drawn(rows: int, width: int) -> Tensor:
    return torch.randn((rows, width), device=DEVICE).to(DTYPE)


def timed(launches: Sequence[Callable[[], object]], budget_ms: float = 6.0, calls: int = CALLS) -> float:
    """Microseconds of one launch: the least of several replays of a graph that goes through `launches` in turn."""
    launches[0]()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            launches[index % len(launches)]()
    graph.replay()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget_ms:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 1e3 * min(times) / calls


Work = tuple[Case, int, Tiling]
"""Case, rows of a tile, tiling."""


def compile_all(pool: ProcessPoolExecutor, work: Sequence[Work]) -> None:
    """Compile what will be tried into Triton's cache, in the pool's processes."""
    began = time.monotonic()
    list(pool.map(compile_some, [work[number::COMPILERS] for number in range(COMPILERS)]))
    print(f"{len(work)} kernels compiled in {time.monotonic() - began:.0f} s", flush=True)


def compile_some(work: Sequence[Work]) -> None:
    with torch.inference_mode():
        for case, height, tiling in work:
            try:
                Bench(case, 1).ours(height, tiling)[0]()
            except Exception:  # whoever tries it says what is wrong
                continue


def search(bench: Bench, height: int, trials: Sequence[Tiling]) -> list[Tiling]:
    """The trials for tiles of so many rows that are right, best first."""
    case, times = bench.case, dict[Tiling, float]()
    for tiling in trials:
        try:
            error = bench.error(height - 3, tiling)
            if error > 0.01:
                print(f"WRONG {case} {tiling}: {error:.3g}", flush=True)
                continue
            times[tiling] = sum(timed(bench.ours(tokens, tiling)) for tokens in SEARCHED[height])
        except Exception as problem:  # too much shared memory, or what the compiler does not take
            print(f"failed {case} {tiling}: {str(problem).splitlines()[0][:100]}", flush=True)
    return sorted(times, key=lambda tiling: times[tiling])


def report(bench: Bench, height: int, ranked: Sequence[Tiling]) -> None:
    """Times of the best by tokens, beside the library's and the built-in tiling's."""
    case, counts = bench.case, [n for n in TOKENS if height == next(each for each in HEIGHTS if n <= each)]
    print(f"\n{case.kind} {case.outputs} x {case.inputs}, tiles of {height} rows; us at {counts} tokens")
    print(line("library", [timed(bench.library(tokens), 20.0) for tokens in counts], case))
    for tiling in dict.fromkeys((case.built_in(height), *ranked[:5])):
        us = [timed(bench.ours(tokens, tiling), 20.0) for tokens in counts]
        name = "built in" if tiling == case.built_in(height) else ""
        print(line(name, us, case), entry(case, height, tiling), flush=True)


def search_all(cases: Sequence[Case], mapped: bool) -> dict[tuple[Kind, int, int, int], Tiling]:
    """The best of every case and height: first for few rows, then of those for more."""
    found, trials = {}, {case: case.trials(mapped) for case in cases}
    with ProcessPoolExecutor(COMPILERS, multiprocessing.get_context("spawn")) as pool:
        for height in HEIGHTS:
            trials = {case: list(dict.fromkeys((case.built_in(height), *trials[case]))) for case in cases}
            compile_all(pool, [(case, height, tiling) for case in cases for tiling in trials[case]])
            for case in cases:
                bench = Bench(case)
                ranked = search(bench, height, trials[case]) or [case.built_in(height)]
                report(bench, height, ranked)
                found[case.kind, case.outputs, case.inputs, height] = ranked[0]
                trials[case] = ranked[:KEPT]
    return found


def line(name: str, us: Sequence[float], case: Case) -> str:
    return f"{name:16}" + "".join(f"{each:8.2f}" for each in us) + f"{case.bytes / us[0] / 1e6:7.2f} TB/s"


def entry(case: Case, height: int, tiling: Tiling) -> str:
    """As a line of `few.MEASURED`."""
    options = "".join(f", {name}=True" for name in ("first", "mapped") if getattr(tiling, name))
    numbers = ", ".join(str(number) for number in tiling[:5])
    return f'("{case.kind}", {case.outputs}, {case.inputs}, {height}): Tiling({numbers}{options}),'


class Layers:
    """Layers without attention, whose heads are the first columns of qkv."""

    def __init__(self, hidden: int, mlp: int, qkv: int) -> None:
        shapes = ((qkv, hidden), (hidden, hidden), (2 * mlp, hidden), (hidden, mlp))
        self._layers = [[linear(*shape) for shape in shapes] for _ in range(LAYERS)]
        self._norm = torch.rand(hidden, device=DEVICE).to(DTYPE) + 0.5
        self.hidden = hidden
        self.bytes = sum(each.weight.nbytes for each in self._layers[0])

    def run(self, way: Way, value: Tensor, count: int = LAYERS) -> Tensor:
        """The norm of the stream `value` behind `count` layers, which update it in place."""
        ops, norm = way.ops, self._norm
        x = ops.rms_norm(value, norm, EPS)
        for layer in self._layers[:count]:
            qkv, output, gate_up, down = (way.form(each) for each in layer)
            x = ops.add_rms_norm(value, ops.project(output, ops.project(qkv, x)[:, : self.hidden]), norm, EPS)
            x = ops.add_rms_norm(value, ops.project(down, ops.gate(gate_up, x)), norm, EPS)
        return x

    def us(self, way: Way, tokens: int) -> float:
        """Of one layer."""
        value = drawn(tokens, self.hidden)
        return timed([lambda: self.run(way, value)], 40.0, 2) / LAYERS


class Way(NamedTuple):
    """How layers are computed. form: what is made of a linear, which decides whose product it is."""

    ops: CudaOps
    form: Callable[[DenseLinear], Linear]

    @classmethod
    def library(cls) -> Way:
        return cls(CudaOps(DTYPE, DEVICE), lambda each: each.__call__)  # not known as a plain weight any more

    @classmethod
    def ours(cls, choose: Choose) -> Way:
        return cls(CudaOps(DTYPE, DEVICE, products=FewProducts(DEVICE, choose)), lambda each: each)


def print_layers(layers: Layers, name: str, choose: Choose) -> None:
    """By the library, and by ours with such tilings: times, and what differs."""
    library, ours = Way.library(), Way.ours(choose)
    print(f"\nlayers, us of one at {TOKENS} tokens")
    for title, way in (("library", library), (name, ours)):
        us = [layers.us(way, tokens) for tokens in TOKENS]
        rate = layers.bytes / us[0] / 1e6
        print(f"{title:20}" + "".join(f"{each:8.2f}" for each in us) + f"{rate:7.2f} TB/s", flush=True)
    print(f"\n% of elements that differ from the library's, stream and norm, at {TOKENS} tokens")
    for count in (1, LAYERS):
        for title, way, rows in ((name, ours, 0), (f"library, {MANY} rows", library, MANY)):
            shares = [differing(layers, count, tokens, way, rows) for tokens in TOKENS]
            print(f"{title:20}" + "".join(f"  {a:5.2f} {b:5.2f}" for a, b in shares) + f"  after {count}", flush=True)


def differing(layers: Layers, count: int, tokens: int, way: Way, rows: int) -> tuple[float, float]:
    """Percentages, in `tokens` rows of the stream and of its norm, between the library and `way` of at least `rows`."""
    begin = drawn(max(tokens, rows), layers.hidden)
    mine, right = begin.clone(), begin[:tokens].clone()
    normed = layers.run(way, mine, count), layers.run(Way.library(), right, count)
    pairs = ((mine, right), normed)
    one, other = (100 * float((a[:tokens] != b).float().mean()) for a, b in pairs)
    return one, other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 4096), ("mlp", 14336), ("qkv", 6144)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    hidden, mlp = options.hidden, options.mlp
    cases = (
        Case("project", options.qkv, hidden),
        Case("project", hidden, hidden),
        Case("gate", mlp, hidden),
        Case("project", hidden, mlp),
    )
    with torch.inference_mode():
        if options.chain:
            print_layers(Layers(hidden, mlp, options.qkv), "built in", partial(choose_tiling, room=room_of(DEVICE)))
        else:
            found = search_all(cases, not options.plain)
            print_layers(Layers(hidden, mlp, options.qkv), "found", lambda *case: found[case])


if __name__ == "__main__":
    main()
