"""Time of one layer's paged attention on a CUDA device: decode and verify, then prefill.

    python benchmarks/gpu_attention.py [--tune] [--heads 32] [--kv-heads 8] [--head-dim 128] [--page-size 16]

Each figure is a replayed CUDA graph of 32 launches, divided by 32. `warm` reads the same keys and values 32 times, and
those of few rows stay in the second-level cache; `cold` reads others each time, as the layers of a model do, as far as
4 GB of them go; `early` is that with programmatic dependent launches. GB/s counts keys and values once, in `cold`.
TFLOP/s counts pairs of a query and a key that it sees. --tune tries tiles, warps, stages and splits, and prints the
best of each case beside what is built in. Where FlashInfer can be imported its fa2 prefill is timed beside ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.cuda.attention import CudaAttention, SplitSpace, Tiling, prefill_tiling
from overdrive.device.cuda.store import rope_store_triton, store_triton

LAUNCHES = 32
POOL = 1 << 20  # positions with keys and values
ROWS, QUERIES, CONTEXTS = (1, 8, 32, 64, 128, 250), (1, 4, 8), (1024, 4096)
PREFILLS = [(32, 4096), (256, 0), (2048, 0), (256, 4096), (2048, 4096), (8192, 0)]  # (new tokens, tokens before)
DECODE_TRIALS = [(64, 4, 3), (128, 4, 3), (128, 8, 3), (64, 4, 5), (32, 4, 3), (64, 8, 3)]  # (keys, warps, stages)
PREFILL_TRIALS = [Tiling(128, 64, 8, 2), Tiling(128, 128, 8, 2), Tiling(128, 128, 8, 3), Tiling(64, 64, 4, 3)]
TUNED = [(1, 1, 1024), (8, 1, 1024), (32, 1, 1024), (64, 1, 1024), (250, 1, 1024), (1, 1, 4096), (8, 1, 4096)]
TUNED += [(1, 8, 1024), (8, 8, 1024), (32, 8, 1024), (64, 8, 1024), (250, 8, 1024), (1, 8, 4096)]


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

    def __init__(self, heads: Heads, page_size: int) -> None:
        self.heads, self.page_size = heads, page_size
        n_pages = POOL // page_size
        shape = (n_pages, heads.kv_heads, page_size, heads.head_dim)
        k, v = (torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
        self.kv = PagedKV([k], [v], page_size)
        self.pages = torch.randperm(n_pages, device="cuda").int()
        self.space = SplitSpace.allocate([heads], max(QUERIES), "cuda")
        # Trials split further than the built-in choice does.
        self.wide = SplitSpace.allocate([heads], max(QUERIES), "cuda", 4 * self.space.processors)

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


def timed(launches: Sequence[Callable[[], object]], budget_ms: float = 60.0) -> float:
    """Microseconds of one launch: the least of several replays of a graph of 32 that go through `launches` in turn."""
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


def tune(bench: Bench) -> None:
    print("\nbest settings, us (keys, warps, stages, splits); then what is built in, and the runners-up")
    for rows, queries, context in TUNED:
        passes = bench.attentions(bench.batches(rows, context, queries), queries, False, bench.wide)
        splits = bench.space.decode_splits(rows, bench.heads.kv_heads)
        tiles = {passes[0].decode, *(Tiling(passes[0].decode.rows, *trial) for trial in DECODE_TRIALS)}
        choices = sorted({max(1, splits // 2), splits, splits * 2 if rows < 32 else splits})
        built_in, q = (passes[0].decode, splits), bench.queries(rows * queries)
        results = []
        for tiling in sorted(tiles):
            for count in choices:
                for one in passes:
                    one.decode, one.splits = tiling, count
                results.append((timed([attend(one, q) for one in passes], 8.0), (tiling, count)))
        print_best(f"{rows} x {queries} at {context}", results, built_in)
    for new, before in PREFILLS:
        passes = bench.attentions(bench.batches(1, before + new, new), 1, True, bench.wide)
        q, results = bench.queries(new), []
        default = prefill_tiling(new, bench.heads, torch.bfloat16, bench.space.processors)
        for tiling in sorted({default, *PREFILL_TRIALS}):
            splits = bench.space.prefill_splits(new, bench.heads, tiling.rows)
            for count in (splits, 2 * splits):
                if count > 1 and new * count * bench.heads.heads > len(bench.wide.totals):
                    continue
                for one in passes:
                    one.prefill, one.prefill_splits = tiling, count
                results.append((timed([attend(one, q) for one in passes], 8.0), (tiling, count)))
        built_in = default, bench.space.prefill_splits(new, bench.heads, default.rows)
        print_best(f"prefill {new} after {before}", results, built_in)


Setting = tuple[Tiling, int]


def print_best(case: str, results: list[tuple[float, Setting]], built_in: Setting) -> None:
    def say(took: float, setting: Setting) -> str:
        tiling, splits = setting
        return f"{took:.1f} ({tiling.rows} x {tiling.keys}, {tiling.warps}, {tiling.stages}, {splits})"

    mine = next(took for took, setting in results if setting == built_in)
    best = "   ".join(say(*result) for result in sorted(results)[:3])
    print(f"{case:22} built in {say(mine, built_in)}   best {best}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    for name, default in (("heads", 32), ("kv-heads", 8), ("head-dim", 128), ("page-size", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    bench = Bench(Heads(options.heads, options.kv_heads, options.head_dim), options.page_size)
    with torch.inference_mode():
        decode_table(bench)
        store_table(bench)
        prefill_table(bench)
        if options.tune:
            tune(bench)


if __name__ == "__main__":
    main()
