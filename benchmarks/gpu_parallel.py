"""One decode step of a large model on one GPU and on several: what dividing the model brings, and what it costs.

    python benchmarks/gpu_parallel.py [--model llama-3.1-70b] [--layers 8] [--ranks 2] [--rows 1 4 64] [--context 1024]

Random weights in bfloat16, a token a row, in CUDA graphs; each figure is the median of replays, of the slowest rank.
`layers` is the time of all layers built, `head` that of the logits with their gathering, `step` what the model's full
number of layers would take with one head. Ratios are those of `step` to one GPU's. The arm `nccl` sums by NCCL alone,
`mapped` by memory that the GPUs map from each other; multicast is off in both. The second table is one sum alone.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from overdrive.config import ModelOptions
from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.cuda.attention import SplitSpace, paged_attention
from overdrive.device.parallel.connect import connect, open_store, reach_store
from overdrive.device.parallel.nccl import NcclRanks
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.device.parallel.symmetric import NoMappedSum
from overdrive.model.assemble import assemble
from overdrive.model.config import ModelConfig
from overdrive.model.forms import cuda_form
from overdrive.model.ops import Attention
from overdrive.model.transformer import Transformer
from overdrive.model.weights import locate, open_checkpoint

PAGE_SIZE = 16
REPLAYS, REPEATS = 20, 9
SUMS = 20  # in one graph
SUMMED_ROWS = (1, 4, 16, 64, 128, 256)


@dataclass(frozen=True)
class Work:
    """What every rank measures. layers: how many of the model's are built."""

    model: str
    layers: int
    ranks: int
    rows: tuple[int, ...]
    context: int


Seconds = dict[tuple[str, int, str], float]  # (arm, rows, part)


@torch.inference_mode()
def measure(work: Work, rank: int, port: int, results: Connection) -> None:
    """One rank's process; the first one sends what it found."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    ranks: Ranks = ALONE
    if work.ranks > 1:
        ranks = connect(reach_store(port, work.ranks), rank, work.ranks, device)
    config, model = build(work, device, ranks)
    found: Seconds = {}
    for arm in arms(ranks):
        for rows in work.rows:
            layers, head = passes(model, rows, work.context, device)
            found[arm, rows, "layers"] = time_graph(layers, ranks)
            found[arm, rows, "head"] = time_graph(head, ranks)
        if work.ranks > 1:
            for rows in SUMMED_ROWS:
                found[arm, rows, "sum"] = time_graph(sums(rows, config.hidden, device, ranks), ranks) / SUMS
    meet(ranks)
    ranks.close()
    if rank == 0:
        results.send((found, config.layers))


def arms(ranks: Ranks) -> Iterator[str]:
    """The ways to sum, each set up in turn."""
    if not isinstance(ranks, NcclRanks):
        yield "one GPU"
        return
    mapped = ranks.mapped
    ranks.mapped = NoMappedSum()
    yield "nccl"
    if not isinstance(mapped, NoMappedSum):
        ranks.mapped = mapped
        yield "mapped"


def build(work: Work, device: torch.device, ranks: Ranks) -> tuple[ModelConfig, Transformer]:
    """The whole model's config, and this rank's part of its first layers."""
    options = ModelOptions(load_format="dummy")
    whole, checkpoint = open_checkpoint(locate(work.model, options, print), options, device)
    config = replace(whole, layers=min(work.layers, whole.layers), windows=whole.windows[: work.layers])
    form = cuda_form("bfloat16", device)
    return whole, assemble(config, checkpoint, form, work.context, lambda *_: None, ranks)


def passes(
    model: Transformer, rows: int, context: int, device: torch.device
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The layers and the head, for one token of each of so many rows, behind `context` others."""
    width = -(-context // PAGE_SIZE)
    kv = PagedKV.allocate(model.config, 1 + rows * width, PAGE_SIZE, model.dtype, device)
    batch = decode_batch(rows, context, width, device)
    space = SplitSpace.allocate([model.config], 1, device)
    hidden = torch.randn((rows, model.config.hidden), device=device).to(model.dtype)

    def attention() -> Attention:
        return paged_attention(kv, model.config, batch, 1, False, space)

    return lambda: model.forward(batch, attention()).final, lambda: model.logits(hidden)


def decode_batch(rows: int, context: int, width: int, device: torch.device) -> Batch:
    positions = torch.full((rows,), context - 1, dtype=torch.int64, device=device)
    pages = 1 + torch.randperm(rows * width, device=device).int().view(rows, width)
    zeros, order = torch.zeros_like(positions), torch.arange(rows + 1, device=device)
    return Batch(
        ids=order[:rows],
        positions=positions,
        rows=order[:rows],
        offsets=order,
        page_table=pages,
        starts=zeros,
        gaps=torch.zeros((rows, 2), dtype=torch.int64, device=device),
        writes=pages[:, -1].long() * PAGE_SIZE + positions % PAGE_SIZE,
        wanted=order[:rows],
    )


def sums(rows: int, width: int, device: torch.device, ranks: Ranks) -> Callable[[], Tensor]:
    """Sums in a row, as a step has them between its products."""
    x = torch.zeros((rows, width), dtype=torch.bfloat16, device=device)

    def work() -> Tensor:
        y = x
        for _ in range(SUMS):
            y = ranks.sum(y)
        return y

    return work


def time_graph(work: Callable[[], Tensor], ranks: Ranks) -> float:
    """Seconds of a replay: the median over repeats, of the slowest rank."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        graph.replay()
        seconds = statistics.median(time_replays(graph, ranks) for _ in range(REPEATS))
    stream.synchronize()
    return seconds


def time_replays(graph: torch.cuda.CUDAGraph, ranks: Ranks) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    meet(ranks)
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / REPLAYS


def meet(ranks: Ranks) -> None:
    """Ranks start together: what one waits for the others is not the step's time."""
    if ranks.count > 1:
        ranks.share(torch.zeros(1, dtype=torch.int64, device="cuda"))
        torch.cuda.current_stream().synchronize()


def run(work: Work) -> tuple[Seconds, int]:
    """Measure in processes of their own. Returns the leader's figures, and how many layers the model has."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    store, port = open_store(work.ranks)  # which lives here until all have ended
    processes = [context.Process(target=measure, args=(work, rank, port, theirs)) for rank in range(work.ranks)]
    for process in processes:
        process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise SystemExit("a rank failed; its reason stands above") from None
    finally:
        for process in processes:
            process.join(20)
            process.kill()
        del store


def print_tables(alone: Seconds, divided: Seconds, work: Work, layers: int) -> None:
    def step(found: Seconds, arm: str, rows: int) -> float:
        built = min(work.layers, layers)
        return found[arm, rows, "layers"] / built * layers + found[arm, rows, "head"]

    both = {**alone, **divided}
    print(f"\n{work.model}, {work.layers} of {layers} layers built, context {work.context}, ms")
    print("| rows | arm | layers | head | step | ratio |\n|---|---|---|---|---|---|")
    for rows in work.rows:
        for arm in dict.fromkeys(arm for arm, _, part in both if part == "layers"):
            parts = [both[arm, rows, "layers"], both[arm, rows, "head"], step(both, arm, rows)]
            ratio = step(both, "one GPU", rows) / parts[2]
            print(f"| {rows} | {arm} | {' | '.join(f'{1e3 * x:.3f}' for x in parts)} | {ratio:.2f}x |")
    names = list(dict.fromkeys(arm for arm, _, part in divided if part == "sum"))
    print(f"\none sum of [rows, hidden] over {work.ranks} GPUs, us")
    print(f"| rows | {' | '.join(names)} |\n|{'---|' * (1 + len(names))}")
    for rows in SUMMED_ROWS:
        times = [1e6 * divided[name, rows, "sum"] for name in names]
        print(f"| {rows} | {' | '.join(f'{time:.1f}' for time in times)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-70b", help="a shape's name, or a folder with config.json")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 64])
    parser.add_argument("--context", type=int, default=1024)
    given = parser.parse_args()
    work = Work(given.model, given.layers, given.ranks, tuple(given.rows), given.context)
    alone, layers = run(replace(work, ranks=1))
    divided, _ = run(work)
    print_tables(alone, divided, work, layers)


if __name__ == "__main__":
    main()
