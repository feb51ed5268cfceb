"""Time of one layer's paged attention on the CPU, beside torch's SDPA over keys and values copied from the pages.

    python benchmarks/cpu_attention.py [--threads 2] [--page-size 16] [--rounds 9]

Head shape of SmolLM2-135M: 9 query heads, 3 key heads, width 64. `copied` gathers the pages and calls SDPA, once per
batch, as a server without a paged kernel does; `ready` is SDPA alone on contiguous keys. Arms take turns; printed are
the least microseconds, and GFLOP/s of the paged kernel.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cpu.attention import PagedAttention
from overdrive.device.cpu.team import Team

HEADS, KV_HEADS, DIMS = 9, 3, 64
SETTLE = 0.02  # seconds in which torch's threads, which spin on after their work, leave the cores to the next arm
CASES = [  # rows, context of each with its new tokens, new tokens of each
    *((1, 256, 1), (1, 256, 4), (1, 2048, 1), (1, 2048, 4), (1, 8192, 1), (4, 256, 1), (16, 256, 1), (16, 256, 4)),
    *((16, 1024, 1), (64, 256, 1), (1, 256, 256), (1, 1024, 256), (1, 2048, 256), (1, 8192, 256)),
]


def make_batch(rows: int, context: int, tokens: int, page_size: int) -> Batch:
    """Every row at the same length, its pages scattered."""
    width = -(-context // page_size)
    table = (1 + torch.randperm(rows * width, generator=torch.Generator().manual_seed(0))).view(rows, width).int()
    positions = torch.arange(context - tokens, context).repeat(rows)
    row = torch.arange(rows).repeat_interleave(tokens)
    return Batch(
        ids=torch.zeros_like(positions),
        positions=positions,
        rows=row,
        offsets=torch.arange(rows + 1) * tokens,
        page_table=table,
        starts=torch.zeros(rows, dtype=torch.int64),
        gaps=torch.zeros((rows, 2), dtype=torch.int64),
        writes=table[row, positions // page_size].long() * page_size + positions % page_size,
        wanted=torch.arange(0),
    )


def sdpa(q: Tensor, k: Tensor, v: Tensor, rows: int, tokens: int) -> Tensor:
    """q: [T, Hq, D]; k, v: [rows, Hkv, context, D]."""
    context = k.shape[2]
    mask = torch.ones(tokens, context, dtype=torch.bool).tril(context - tokens)
    q = q.view(rows, tokens, HEADS, DIMS).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2).flatten(0, 1)


def gather(pages: Tensor, batch: Batch, context: int) -> Tensor:
    """[rows, Hkv, context, D] copied from the pages."""
    return pages[batch.page_table.long()].transpose(1, 2).flatten(2, 3)[:, :, :context]


def best_us(arms: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times = dict.fromkeys(arms, float("inf"))
    for _ in range(rounds):
        for name, run in arms.items():
            time.sleep(SETTLE)
            run()  # threads awake, pages in the cache where they fit
            start = time.perf_counter()
            run()
            times[name] = min(times[name], (time.perf_counter() - start) * 1e6)
    return times


def measure(attention: PagedAttention, case: tuple[int, int, int], page_size: int, rounds: int) -> str:
    rows, context, tokens = case
    batch = make_batch(rows, context, tokens, page_size)
    shape = (batch.page_table.numel() + 1, KV_HEADS, page_size, DIMS)
    k_plain, v_pages = torch.randn(shape), torch.randn(shape)
    k_pages = torch.empty(shape)  # as the kernel keeps them
    every = torch.arange(shape[0] * page_size)
    attention.store(
        k_plain.transpose(1, 2).reshape(-1, KV_HEADS, DIMS),
        v_pages.transpose(1, 2).reshape(-1, KV_HEADS, DIMS),
        k_pages,
        v_pages.clone(),
        every,
    )
    q = torch.randn(rows * tokens, HEADS, DIMS)
    prepared = attention.prepare(batch, HEADS, KV_HEADS)
    ready = gather(k_plain, batch, context).contiguous(), gather(v_pages, batch, context).contiguous()
    times = best_us(
        {
            "paged": lambda: prepared(q, k_pages, v_pages, DIMS**-0.5),
            "ready": lambda: sdpa(q, *ready, rows, tokens),
            "copied": lambda: sdpa(q, *(gather(p, batch, context) for p in (k_plain, v_pages)), rows, tokens),
        },
        rounds,
    )
    got, expected = prepared(q, k_pages, v_pages, DIMS**-0.5), sdpa(q, *ready, rows, tokens)
    error = (got.view(expected.shape) - expected).abs().max().item()
    seen = rows * sum(range(context - tokens + 1, context + 1))  # pairs of token and visible key
    gflops = 4 * HEADS * DIMS * seen / times["paged"] / 1e3
    cells = "".join(f"{times[arm]:10.0f}" for arm in ("paged", "ready", "copied"))
    return f"{rows:5}{context:9}{tokens:8}{cells}{times['paged'] / times['ready']:9.2f}{gflops:9.0f}{error:10.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    attention = PagedAttention(Team(options.threads), DIMS)
    print(" rows  context  tokens  paged us  ready us copied us  x ready   GF/s  max diff")
    for case in CASES:
        print(measure(attention, case, options.page_size, options.rounds))


if __name__ == "__main__":
    main()
