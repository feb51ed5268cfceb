"""Time of one layer's paged attention on a CUDA device: decode and verify, then prefill.

    python benchmarks/gpu_attention.py [--decide] [--heads 32] [--kv-heads 8] [--head-dim 128] [--page-size 16]

Each figure is a replayed CUDA graph of 32 launches, divided by 32. `warm` reads the same keys and values 32 times, and
those of few rows stay in the second-level cache; `cold` reads others each time, as the layers of a model do, as far as
4 GB of them go; `early` is that with programmatic dependent launches. GB/s counts keys and values once, in `cold`.
TFLOP/s counts pairs of a query and a key that it sees. Where FlashInfer can be imported its fa2 prefill is timed beside
ours. --decide does something else, in about a minute: it looks for better choices than the built-in ones, with the
second-level cache emptied before every replay, and prints a line for each case. A choice reads
"keys/warps/stages xsplits", with "late" where kernels are not set up early.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.cuda.attention import CudaAttention, SplitSpace, Tiling
from overdrive.device.cuda.store import rope_store_triton, store_triton

LAUNCHES = 32
POOL = 1 << 20  # positions with keys and values
ROWS, QUERIES, CONTEXTS = (1, 8, 32, 64, 128, 250), (1, 4, 8), (1024, 4096)
PREFILLS = [(32, 4096), (256, 0), (2048, 0), (256, 4096), (2048, 4096), (8192, 0)]  # (new tokens, tokens before)
CACHE_BYTES = 256 << 20
"""More than the second-level cache holds."""

# What --decide looks at: (rows, queries) at both contexts, and prompts as (rows, new tokens of each).
DECIDED = [
    (1, 1),
    (1, 4),
    (1, 6),
    (1, 8),
    (4, 4),
    (4, 8),
    (16, 1),
    (30, 1),
    (30, 4),
    (30, 6),
    (64, 1),
    (128, 1),
    (250, 1),
]
DECIDED_CONTEXTS, PROMPTS = (1024, 4096), [(8, 256), (1, 2048)]
DECODE_TRIALS = [(32, 4, 3), (32, 4, 4), (32, 4, 5), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3), (128, 4, 2)]
PREFILL_TRIALS = [(128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2)]
COMPILERS = 8
"""Processes that compile."""


@dataclass(frozen=True)
class Heads:
    """What attention must know of a network: one layer without a window."""

    heads: int
    kv_heads: int
    head_dim: int
    layers: int = 1

    def window(self, layer: int) -> int:
        return 0


class Bench:
    """A pool of pages, shuffled, from which every case takes its rows."""

    def __init__(self, heads: Heads, page_size: int, positions: int = POOL) -> None:
        self.heads, self.page_size = heads, page_size
        n_pages = positions // page_size
        shape = (n_pages, heads.kv_heads, page_size, heads.head_dim)
        k, v = (torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
        self.kv = PagedKV([k], [v], page_size)
        self.pages = torch.randperm(n_pages, device="cuda").int()
        self.space = SplitSpace.allocate([heads], max(QUERIES), "cuda")

    def batches(self, rows: int, context: int, tokens: int) -> list[Batch]:
        """Up to 32 batches of rows whose last `tokens` of `context` are new, with pages of their own."""
        width = -(-context // self.page_size)
        sets = max(1, min(LAUNCHES, len(self.pages) // (rows * width)))
        positions = torch.arange(context - tokens, context, device="cuda").repeat(rows)
        zeros = torch.zeros(rows, dtype=torch.int64, device="cuda")
        batch = Batch(
            ids=positions,
            positions=positions,
            rows=torch.arange(rows, device="cuda").repeat_interleave(tokens),
            offsets=torch.arange(rows + 1, device="cuda") * tokens,
            page_table=self.pages[: rows * width].view(rows, width),
            starts=zeros,
            gaps=zeros.new_zeros((rows, 2)),
            writes=positions,
            wanted=positions,
        )
        tables = self.pages[: sets * rows * width].view(sets, rows, width)
        return [replace(batch, page_table=table) for table in tables]

    def product(self, tokens: int) -> Tensor:
        """Queries, keys and values of a layer, [tokens, Hq + 2 Hkv, D]."""
        heads = self.heads
        shape = (tokens, heads.heads + 2 * heads.kv_heads, heads.head_dim)
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

    def queries(self, tokens: int) -> Tensor:
        return self.product(tokens)[:, : self.heads.heads]

    def attentions(
        self, batches: Sequence[Batch], queries: int, long_rows: bool, space: SplitSpace | None = None
    ) -> list[CudaAttention]:
        room = space or self.space
        return [CudaAttention(self.kv, self.heads, batch, queries, long_rows, room) for batch in batches]


def timed(
    launches: Sequence[Callable[[], object]], budget_ms: float = 60.0, before: Callable[[], object] = lambda: None
) -> float:
    """Microseconds of one launch: the least of several replays of a graph of 32 that go through `launches` in turn.

    before: is done before each replay.
    """
    for launch in launches[:2]:
        launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(LAUNCHES):
            launches[index % len(launches)]()
    graph.replay()
    times: list[float] = []
    while len(times) < 2 or sum(times) < budget_ms:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 1e3 * min(times) / LAUNCHES


def attend(attention: CudaAttention, q: Tensor) -> Callable[[], Tensor]:
    return lambda: attention.attend(0, q)


def decode_table(bench: Bench) -> None:
    heads = bench.heads
    columns = f"{'warm us':>10}{'cold us':>10}{'early us':>10}{'GB/s':>8}"
    print(f"{'rows':>5}{'queries':>9}{'context':>9}{'splits':>8}{columns}")
    for context in CONTEXTS:
        for queries in QUERIES:
            for rows in ROWS:
                if rows * context > POOL:
                    continue
                passes = bench.attentions(bench.batches(rows, context, queries), queries, False)
                q = bench.queries(rows * queries)
                for one in passes:
                    one.early = False
                warm = timed([attend(passes[0], q)])
                cold = timed([attend(one, q) for one in passes])
                for one in passes:
                    one.early = True
                early = timed([attend(one, q) for one in passes])
                moved = 4 * rows * context * heads.kv_heads * heads.head_dim
                times = f"{warm:10.1f}{cold:10.1f}{early:10.1f}{moved / cold / 1e3:8.0f}"
                print(f"{rows:5}{queries:9}{context:9}{passes[0].splits:8}{times}", flush=True)


def store_table(bench: Bench) -> None:
    """Storing alone, and rotating and storing, of a layer."""
    print(f"\n{'tokens':>7}{'store us':>10}{'early us':>10}{'rope us':>10}{'early us':>10}")
    heads, (k_pages,), (v_pages,) = bench.heads, bench.kv.k_pages, bench.kv.v_pages
    cos, sin = torch.randn((2, POOL, heads.head_dim // 2), dtype=torch.bfloat16, device="cuda")
    for tokens in (1, 32, 250, 1000, 4096):
        [batch] = bench.batches(tokens, bench.page_size, 1)[:1]
        qkv = bench.product(tokens)
        q, k, v = qkv.split([heads.heads, heads.kv_heads, heads.kv_heads], 1)
        places = (k_pages, v_pages, bench.pages[:tokens].long() * bench.page_size, batch.offsets)
        line = f"{tokens:7}"
        for early in (False, True):
            line += f"{timed([partial(store_triton, k, v, *places, early)]):10.1f}"
        for early in (False, True):
            line += f"{timed([partial(rope_store_triton, q, k, v, batch.positions, cos, sin, *places, early)]):10.1f}"
        print(line, flush=True)


def prefill_table(bench: Bench) -> None:
    other = flashinfer_prefill if find_spec("flashinfer") else None
    print(f"\n{'new':>6}{'before':>8}{'us':>10}{'TFLOP/s':>9}" + (f"{'flashinfer us':>15}" if other else ""))
    for new, before in PREFILLS:
        batches, q = bench.batches(1, before + new, new), bench.queries(new)
        took = timed([attend(one, q) for one in bench.attentions(batches, 1, True)])
        line = f"{new:6}{before:8}{took:10.1f}{prefill_flops(bench.heads, new, before) / took / 1e6:9.0f}"
        print(line + (f"{timed([other(bench, batches[0], q)]):15.1f}" if other else ""), flush=True)


def prefill_flops(heads: Heads, new: int, before: int) -> float:
    return 4.0 * heads.heads * heads.head_dim * (new * before + new * (new + 1) / 2)


def flashinfer_prefill(bench: Bench, batch: Batch, q: Tensor) -> Callable[[], object]:
    import flashinfer

    heads, context = bench.heads, int(batch.positions[-1]) + 1
    room = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "HND", backend="fa2")
    table = batch.page_table[0]
    ends = torch.tensor([0, len(table)], dtype=torch.int32, device="cuda")
    last = torch.tensor([(context - 1) % bench.page_size + 1], dtype=torch.int32, device="cuda")
    wrapper.plan(
        batch.offsets.int(), ends, table, last, heads.heads, heads.kv_heads, heads.head_dim, bench.page_size,
        causal=True, q_data_type=torch.bfloat16,
    )  # fmt: skip
    dense = q.contiguous()
    return lambda: wrapper.run(dense, (bench.kv.k_pages[0], bench.kv.v_pages[0]))


class Choice(NamedTuple):
    """What --decide tries. early: whether kernels are set up while the one before runs."""

    tiling: Tiling
    splits: int
    early: bool

    def __str__(self) -> str:
        _, keys, warps, stages = self.tiling
        return f"{keys}/{warps}/{stages} x{self.splits}" + ("" if self.early else " late")


class Decision:
    """The search for the best choice of one case: first the tiling, then the splits of the two best, then early."""

    def __init__(self, bench: Bench, batches: list[Batch], queries: int, long: bool, wide: SplitSpace) -> None:
        [own] = bench.attentions(batches[:1], queries, long)
        self._q, self._long = bench.queries(len(batches[0].ids)), long
        # Choices may split further than the built-in one does, and need more room for that.
        self._passes = bench.attentions(batches, queries, long, wide)
        self._cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device="cuda")
        self.built_in = Choice(own.prefill, own.prefill_splits, own.early) if long else _short(own)
        self.times: dict[Choice, float] = {}

    def search(self, tilings: Sequence[Tiling]) -> None:
        _, splits, early = self.built_in
        for tiling in {self.built_in.tiling, *tilings}:
            self._try(Choice(tiling, splits, early))
        if not self._long:
            others = {max(1, splits // 4), max(1, splits // 2), min(32, 2 * splits), 3 if splits < 3 else splits}
            for choice, count in product(self.ranked()[:2], sorted(others)):
                self._try(choice._replace(splits=count))
        self._try(self.ranked()[0]._replace(early=False))

    def ranked(self) -> list[Choice]:
        return sorted(self.times, key=lambda choice: self.times[choice])

    def _try(self, choice: Choice) -> None:
        if choice in self.times:
            return
        for one in self._passes:
            choose(one, choice, self._long)
        launches = [attend(one, self._q) for one in self._passes]
        self.times[choice] = timed(launches, 4.0, self._cache.zero_)

    def __str__(self) -> str:
        shown = [f"{self.times[choice]:6.1f} ({choice})" for choice in (self.built_in, *self.ranked()[:3])]
        late = min((took for choice, took in self.times.items() if not choice.early), default=float("nan"))
        return f"built in {shown[0]:27} best {shown[1]:27} then {' '.join(shown[2:])}   best late {late:.1f}"


def _short(attention: CudaAttention) -> Choice:
    return Choice(attention.decode, attention.splits, attention.early)


def choose(attention: CudaAttention, choice: Choice, long: bool) -> None:
    attention.early = choice.early
    if long:
        attention.prefill, attention.prefill_splits = choice.tiling, choice.splits
    else:
        attention.decode, attention.splits = choice.tiling, choice.splits
        attention.least = 1


def decide(bench: Bench, heads: Heads) -> None:
    group = heads.heads // heads.kv_heads
    compile_all(heads, bench.page_size)
    wide = SplitSpace.allocate([heads], 8, "cuda", 16 * bench.space.processors)
    for context, (rows, queries) in product(DECIDED_CONTEXTS, DECIDED):
        decision = Decision(bench, bench.batches(rows, context, queries), queries, False, wide)
        decision.search(decode_trials(queries * group))
        best = min(decision.times.values())
        speed = 4 * rows * context * heads.kv_heads * heads.head_dim / best / 1e3
        print(f"{rows:4} x {queries} at {context:5}  {decision}  {speed:5.0f} GB/s", flush=True)
    for rows, new in PROMPTS:
        decision = Decision(bench, bench.batches(rows, new, new), 1, True, wide)
        decision.search([Tiling(*trial) for trial in PREFILL_TRIALS])
        flops = rows * prefill_flops(heads, new, 0) / min(decision.times.values()) / 1e6
        print(f"prompts {rows} x {new:5}  {decision}  {flops:5.0f} TFLOP/s", flush=True)


def decode_trials(rows: int) -> list[Tiling]:
    return [Tiling(max(16, 1 << (rows - 1).bit_length()), *trial) for trial in DECODE_TRIALS]


def compile_all(heads: Heads, page_size: int) -> None:
    """Compile what will be tried into Triton's cache, in processes of their own: one after the other takes a minute."""
    group = heads.heads // heads.kv_heads
    tilings = {tiling for _, queries in DECIDED for tiling in decode_trials(queries * group)}
    short = [(tiling, splits, early, False) for tiling in tilings for splits in (1, 2) for early in (True, False)]
    long = [(Tiling(*trial), 1, True, True) for trial in PREFILL_TRIALS]
    work = [*long, *short]
    with ProcessPoolExecutor(COMPILERS, multiprocessing.get_context("spawn")) as pool:
        shares = [work[number::COMPILERS] for number in range(COMPILERS)]
        list(pool.map(partial(compile_some, heads, page_size), shares))


def compile_some(heads: Heads, page_size: int, choices: Sequence[tuple[Tiling, int, bool, bool]]) -> None:
    with torch.inference_mode():
        bench = Bench(heads, page_size, 1024)
        for tiling, splits, early, long in choices:
            tokens = 17 if long else 1
            [attention] = bench.attentions(bench.batches(1, 128, tokens)[:1], 1, long)
            choose(attention, Choice(tiling, splits, early), long)
            attention.attend(0, bench.queries(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decide", action="store_true")
    for name, default in (("heads", 32), ("kv-heads", 8), ("head-dim", 128), ("page-size", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    heads = Heads(options.heads, options.kv_heads, options.head_dim)
    bench = Bench(heads, options.page_size)
    with torch.inference_mode():
        if options.decide:
            decide(bench, heads)
            return
        decode_table(bench)
        store_table(bench)
        prefill_table(bench)


if __name__ == "__main__":
    main()
