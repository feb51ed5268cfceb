"""What ranks exchange over NCCL and over mapped memory, as it is written and in CUDA graphs. Needs two GPUs."""

from __future__ import annotations

import multiprocessing as mp

import pytest
import torch
from torch import Tensor

from overdrive.device.parallel.connect import PATIENCE, open_store, reach_store
from overdrive.device.parallel.nccl import NcclRanks

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

COUNT = 2


def on_rank(rank: int, port: int, mapped: bool) -> None:
    device = torch.device("cuda", rank)
    ranks = NcclRanks(reach_store(port, COUNT), rank, COUNT, device, PATIENCE, mapped)
    with torch.inference_mode():
        for check in (check_sums, check_the_rest, check_graph):
            check(ranks)
        ranks.share(torch.zeros(1, dtype=torch.int64, device=device))
        torch.cuda.synchronize()
    ranks.close()


def numbers(rank: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers, whose sums are exact in every type."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-8, 9, (rows, width), generator=generator).to("cuda", dtype)


def check_sums(ranks: NcclRanks) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rows, width in ((1, 64), (1, 8192), (3, 40), (64, 8192), (257, 8192), (1024, 8192)):
            mine = numbers(ranks.rank, rows, width, dtype)
            expected = sum(numbers(rank, rows, width, dtype) for rank in range(COUNT))
            for times in range(1, 6):  # the memory between the GPUs is used again, for other numbers
                found = ranks.sum(mine * times)
                assert torch.equal(found, expected * times), (dtype, rows, width, times)


def check_the_rest(ranks: NcclRanks) -> None:
    side = ranks.gather(numbers(ranks.rank, 5, 6, torch.float32))
    assert torch.equal(side, torch.cat([numbers(rank, 5, 6, torch.float32) for rank in range(COUNT)], dim=1))
    tokens = torch.arange(12, device="cuda").view(3, 4) * (1 - ranks.rank)
    counts = torch.tensor([5, 6, 7], device="cuda") * (1 - ranks.rank)
    ranks.share(tokens, counts)
    assert tokens.flatten().tolist() == list(range(12))
    assert counts.tolist() == [5, 6, 7]


def check_graph(ranks: NcclRanks) -> None:
    """All three in one graph, replayed with other values in the same places."""
    x, told = torch.zeros((4, 512), dtype=torch.bfloat16, device="cuda"), torch.zeros(3, dtype=torch.int64).cuda()
    stream = torch.cuda.Stream()

    def work() -> tuple[Tensor, Tensor]:
        ranks.share(told)
        total = ranks.sum(x.clone())
        for _ in range(8):
            total = ranks.sum(total / COUNT)
        return total, ranks.gather(x)

    with torch.cuda.stream(stream):
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            total, side = work()
        for turn in range(5):
            x.fill_(turn + ranks.rank)
            told.fill_(turn if ranks.rank == 0 else -1)
            graph.replay()
            stream.synchronize()
            assert told.tolist() == [turn] * 3
            assert bool((total == 2 * turn + 1).all())
            assert side[0, :512].unique().tolist() == [turn]
            assert side[0, 512:].unique().tolist() == [turn + 1]


@pytest.mark.parametrize("mapped", [False, True])
def test_ranks_meet(mapped: bool) -> None:
    """One pair of processes for all checks: starting them takes longer than the checks do."""
    store, port = open_store(COUNT)
    context = mp.get_context("spawn")
    processes = [context.Process(target=on_rank, args=(rank, port, mapped)) for rank in range(COUNT)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    del store
    assert codes == [0] * COUNT
