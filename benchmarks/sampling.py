"""Time to draw the tokens of one step on the CPU: the fast sampler beside the torch reference.

    python benchmarks/sampling.py [--vocab 49152] [--threads 2] [--rows 1,8,64]

Logits look like a language model's: normal with deviation 3, and a Zipf-like head of a few hundred better tokens.
Prints the median in microseconds per step; `reference` is left out where it would take seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from overdrive.device.cpu.sampling import CpuSampler
from overdrive.device.cpu.team import Team
from overdrive.device.sampling import Layout, SamplingState, sample
from overdrive.types import SamplingParams

CASES = {
    "greedy": SamplingParams(max_tokens=64, temperature=0),
    "T .8": SamplingParams(max_tokens=64, temperature=0.8),
    "top-p .95": SamplingParams(max_tokens=64, temperature=0.8, top_p=0.95),
    "top-k 40": SamplingParams(max_tokens=64, temperature=0.8, top_k=40),
    "both": SamplingParams(max_tokens=64, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "penalties": SamplingParams(max_tokens=64, temperature=0.8, frequency_penalty=0.5, repetition_penalty=1.1),
}


def language_like(rows: int, vocab: int) -> torch.Tensor:
    """[rows, vocab] float32 logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((rows, vocab), generator=generator) * 3
    head = torch.randint(0, vocab, (rows, 300), generator=generator)
    return logits.scatter_add_(1, head, (18 - 1.5 * torch.arange(1, 301).log2()).expand(rows, -1))


def median_us(run: Callable[[], object], seconds: float = 0.4) -> float:
    """Median time of a call, in microseconds."""
    run()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure(vocab: int, rows: int, drafts: int, threads: int, params: SamplingParams) -> tuple[float, float]:
    """Median microseconds of the fast sampler and of the reference (0 when left out)."""
    state = SamplingState(rows, vocab, torch.float32)
    for slot in range(rows):
        state.admit(slot, params, range(200), 100)
    row = torch.arange(rows).repeat_interleave(drafts + 1)
    depth = torch.arange(drafts + 1).repeat(rows)
    layout = Layout(row, row, depth, 200 + depth)
    arguments = (language_like(len(row), vocab), layout, torch.zeros((rows, drafts), dtype=torch.int64), state)
    sampler = CpuSampler(vocab, torch.float32, Team(threads))
    fast = median_us(lambda: sampler(*arguments))
    return fast, median_us(lambda: sample(*arguments)) if len(row) <= 32 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,8,64")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"vocabulary {options.vocab}, {options.threads} threads; microseconds per step")
    print(f"{'case':10} {'rows':>5} {'K':>2} {'fast':>9} {'per logit row':>14} {'reference':>10}")
    for name, params in CASES.items():
        for rows in map(int, options.rows.split(",")):
            for drafts in (0, 3):
                fast, reference = measure(options.vocab, rows, drafts, options.threads, params)
                each = fast / (rows * (drafts + 1))
                print(f"{name:10} {rows:5} {drafts:2} {fast:9.0f} {each:14.1f} {reference:10.0f}")


if __name__ == "__main__":
    main()
