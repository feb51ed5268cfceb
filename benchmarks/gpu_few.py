"""Time of a layer's products for few tokens on a CUDA device: the library's and the element-wise kernels, or ours.

    PYTHONPATH=src python benchmarks/gpu_few.py [--chain] [--plain] [--hidden 4096] [--mlp 14336] [--qkv 6144]

Looks for the best tiling of every product: compiles in parallel, compares each with float64 products, drops what fails,
times the rest at 1 and 16 tokens (tiles of 16 rows, one tiling for all numbers of tokens up to that) or at 32, and
prints the best as lines for `few.MEASURED`, with microseconds by tokens and TB/s of weights at the fewest. `library` is
the same work as it is done otherwise: a product, then the added norm, or the activation. Then whole layers, norm to
norm, without attention: by the library and by the tilings that were found; `early` are programmatic dependent launches.
--chain: the layers alone, by the built-in tilings. --plain: no tensor descriptors. Every replay goes through eight
layers' weights, so that none stays in the second-level cache. About 90 s; --chain 20 s.
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

import torch
from torch import Tensor

from overdrive.device.cuda.few import (
    HEIGHTS,
    Choose,
    FewProducts,
    FewResidual,
    Kind,
    Operand,
    Pending,
    Tiling,
    choose_tiling,
)
from overdrive.device.cuda.ops import CudaOps
from overdrive.model.residual import NormedResidual, Residual
from overdrive.model.transformer import DenseLinear

DEVICE, DTYPE, EPS = torch.device("cuda"), torch.bfloat16, 1e-5
LAYERS, CALLS = 8, 32
TOKENS = (1, 4, 8, 16, 32)
SEARCHED = {16: (1, 16), 32: (32,)}
"""Tokens that tilings are ranked at, by rows of a tile."""
COMPILERS = 14
SHARED_BYTES = 227 << 10
"""Of a program on Hopper."""
PROGRAMS = {"project": (90, 400), "gate": (100, 900), "add": (180, 400)}
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
        return choose_tiling(self.kind, self.outputs, self.inputs, height)

    def trials(self, mapped: bool) -> list[Tiling]:
        """Tilings that fit and make about as many programs as run at once."""
        found = []
        for (first, by_map), sizes in TRIALS.items():
            for (width, depth, warps, stages), splits in product(sizes, SPLITS if self.kind == "add" else (1,)):
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
        self.norm = torch.rand(max(case.outputs, case.inputs), device=DEVICE).to(DTYPE)
        self.ops = CudaOps(DTYPE, DEVICE)

    def ours(self, tokens: int, tiling: Tiling, early: bool = False) -> list[Callable[[], object]]:
        """The launch in every layer."""
        products = FewProducts(DEVICE, early, lambda *_: tiling)
        if self.case.kind == "add":
            x, residual = drawn(tokens, self.case.inputs), drawn(tokens, self.case.outputs)
            norm = self.norm[: self.case.outputs]
            return [partial(products.add, residual, each, x, norm) for each in self.linears]
        made = products.project if self.case.kind == "project" else products.gate
        return [partial(made, self.operand(drawn(tokens, self.case.inputs)), each, EPS) for each in self.linears]

    def operand(self, x: Tensor) -> Operand:
        """x and its squares in as many parts as an addition leaves."""
        height = next(height for height in HEIGHTS if len(x) <= height)
        squares = torch.zeros((self.case.inputs // 32, height), device=DEVICE)
        squares[:, : len(x)] = x.float().square().view(len(x), -1, 32).sum(2).t()
        return Operand(x, Pending(squares, self.norm[: self.case.inputs]))

    def library(self, tokens: int) -> list[Callable[[], object]]:
        x, residual, ops = drawn(tokens, self.case.inputs), drawn(tokens, self.case.outputs), self.ops
        norm = self.norm[: self.case.outputs]
        work: dict[Kind, Callable[[DenseLinear], object]] = {
            "project": lambda each: each(x),
            "gate": lambda each: ops.silu_mul(each(x)),
            "add": lambda each: ops.add_rms_norm(residual, each(x), norm, EPS),
        }
        return [partial(work[self.case.kind], each) for each in self.linears]

    def error(self, tokens: int, tiling: Tiling) -> float:
        """Of the first layer's result, relative to that of float64."""
        products, each, x = (
            FewProducts(DEVICE, False, lambda *_: tiling),
            self.linears[0],
            drawn(tokens, self.case.inputs),
        )
        weight = each.weight.double()
        if self.case.kind == "add":
            residual = drawn(tokens, self.case.outputs)
            exact, norm = residual.double() + x.double() @ weight.t(), self.norm[: self.case.outputs]
            scaled, pending = products.add(residual, each, x, norm)
            assert pending is not None and not products._arrivals.any()
            found = (scaled.double() / pending.squares.sum(0)[:tokens, None].double().sqrt(), residual.double())
            return max(apart(found[0], exact * norm.double() / exact.norm(dim=1, keepdim=True)), apart(found[1], exact))
        normed = x.double() * (x.double().square().mean(1, keepdim=True) + EPS).rsqrt()
        exact = normed @ weight.t()
        if self.case.kind == "project":
            return apart(products.project(self.operand(x), each, EPS).double(), exact)
        gate, up = exact.chunk(2, dim=1)
        return apart(products.gate(self.operand(x), each, EPS).double(), torch.nn.functional.silu(gate) * up)


def linear(outputs: int, inputs: int) -> DenseLinear:
    return DenseLinear((torch.randn((outputs, inputs), device=DEVICE, dtype=DTYPE)).mul_(inputs**-0.5))


def drawn(rows: int, width: int) -> Tensor:
    return torch.randn((rows, width), device=DEVICE).to(DTYPE)


def apart(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


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


Work = tuple[Case, int, Tiling, bool]
"""Case, rows of a tile, tiling, and whether kernels are set up early."""


def compile_all(pool: ProcessPoolExecutor, work: Sequence[Work]) -> None:
    """Compile what will be tried into Triton's cache, in the pool's processes."""
    began = time.monotonic()
    list(pool.map(compile_some, [work[number::COMPILERS] for number in range(COMPILERS)]))
    print(f"{len(work)} kernels compiled in {time.monotonic() - began:.0f} s", flush=True)


def compile_some(work: Sequence[Work]) -> None:
    with torch.inference_mode():
        for case, height, tiling, early in work:
            try:
                Bench(case, 1).ours(height, tiling, early)[0]()
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
    """Times of the best by tokens, beside the library's and the built-in tiling's, and of the best set up early."""
    case, counts = bench.case, [n for n in TOKENS if height == next(each for each in HEIGHTS if n <= each)]
    print(f"\n{case.kind} {case.outputs} x {case.inputs}, tiles of {height} rows; us at {counts} tokens")
    print(line("library", [timed(bench.library(tokens), 20.0) for tokens in counts], case))
    for tiling in dict.fromkeys((case.built_in(height), *ranked[:5])):
        us = [timed(bench.ours(tokens, tiling), 20.0) for tokens in counts]
        name = "built in" if tiling == case.built_in(height) else ""
        print(line(name, us, case), entry(case, height, tiling))
    for tiling in ahead_trials(ranked[0]):
        us = [timed(bench.ours(tokens, tiling, True), 20.0) for tokens in counts]
        print(line(f"early, ahead {tiling.ahead}", us, case), flush=True)


def ahead_trials(tiling: Tiling) -> list[Tiling]:
    return [tiling._replace(ahead=ahead) for ahead in (1, 2, 4, 8)]


def search_all(cases: Sequence[Case], mapped: bool) -> dict[tuple[Kind, int, int, int], Tiling]:
    """The best of every case and height: first for few rows, then of those for more."""
    found, trials = {}, {case: case.trials(mapped) for case in cases}
    with ProcessPoolExecutor(COMPILERS, multiprocessing.get_context("spawn")) as pool:
        for height in HEIGHTS:
            trials = {case: list(dict.fromkeys((case.built_in(height), *trials[case]))) for case in cases}
            compile_all(pool, [(case, height, tiling, False) for case in cases for tiling in trials[case]])
            for case in cases:
                bench = Bench(case)
                ranked = search(bench, height, trials[case]) or [case.built_in(height)]
                compile_all(pool, [(case, height, tiling, True) for tiling in ahead_trials(ranked[0])])
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
        self._hidden = hidden
        self.bytes = sum(each.weight.nbytes for each in self._layers[0])

    def run(self, residual: Residual) -> Tensor:
        for qkv, output, gate_up, down in self._layers:
            residual.add(output, residual.project(qkv)[:, : self._hidden], self._norm)
            residual.add(down, residual.gate(gate_up), self._norm)
        return residual.normed()

    def us(self, tokens: int, open_residual: Callable[[Tensor, Tensor], Residual]) -> float:
        """Of one layer."""
        value, x = drawn(tokens, self._hidden), drawn(tokens, self._hidden)
        return timed([lambda: self.run(open_residual(value, x))], 40.0, 2) / LAYERS


def print_layers(layers: Layers, name: str, choose: Choose) -> None:
    """By the library, and by ours with such tilings."""
    print(f"\nlayers, us of one at {TOKENS} tokens")
    table: dict[str, Callable[[Tensor, Tensor], Residual]] = {
        "library": lambda value, x: NormedResidual(CudaOps(DTYPE, DEVICE), value, x, EPS)
    }
    for early in (False, True):
        products, ops = FewProducts(DEVICE, early, choose), CudaOps(DTYPE, DEVICE, early)
        table[name + (", early" if early else "")] = partial(FewResidual, products, ops, eps=EPS)
    for name, open_residual in table.items():
        us = [layers.us(tokens, open_residual) for tokens in TOKENS]
        rate = layers.bytes / us[0] / 1e6
        print(f"{name:20}" + "".join(f"{each:8.2f}" for each in us) + f"{rate:7.2f} TB/s", flush=True)


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
        Case("add", hidden, hidden),
        Case("gate", mlp, hidden),
        Case("add", hidden, mlp),
    )
    with torch.inference_mode():
        if options.chain:
            print_layers(Layers(hidden, mlp, options.qkv), "built in", choose_tiling)
        else:
            found = search_all(cases, not options.plain)
            print_layers(Layers(hidden, mlp, options.qkv), "found", lambda *case: found[case])


if __name__ == "__main__":
    main()
