"""Throughput of the engine on one CUDA device, by concurrency, with speculation off and at fixed numbers of drafts.

Run: PYTHONPATH=src python benchmarks/gpu.py [--model llama-3.1-8b] [--k 0 3] [--accept 0.7,0.49,0.343]
     [--rows 1 2 5 10 30 70 100 250] [--parts offline steady idle keep] [--contexts 256 1024 4096] [--repeats 3]

Weights are random and of the model's real shape; with drafts the acceptance is imposed (`--simulate-acceptance`), so
that drafting, verification and memory traffic are real and only the agreement is not. No network, no tokenizer.

offline: C prompts of 256 random ids submitted at once, greedy, no stop, prefix cache off, 256 new tokens each, prefill
   included; after two warm-up batches the median of `--repeats`. Arms: an engine without a drafter ("off"), and one
   with an EAGLE-3 head of the published shape at every K.
steady: the rows are filled with prompts of each context length for real, then decode alone is timed over blocks of
   steps in which the arms take turns.
idle: the share of decode time in which no kernel runs, from a profiler's trace, and the kernels that take the rest.
keep: steady decode of the engine that was started with a drafter and held at K = 0, over the one without, interleaved.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.table import Table

from overdrive.config import (
    DeviceOptions,
    DraftOptions,
    EngineOptions,
    MemoryOptions,
    ModelOptions,
    SchedulerOptions,
)
from overdrive.device.cuda import attention, few
from overdrive.engine import Engine, build
from overdrive.types import SamplingParams
from shared import Dial

NEW = PROMPT = 256
BLOCK = 10
"""Steps that an arm runs before the next one takes its turn."""


@dataclass
class Bench:
    """An engine whose K is set from outside."""

    engine: Engine
    dial: Dial
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1 << 60)))

    def submit(self, rows: int, prompt: int, new: int, rng: random.Random) -> None:
        """Queue `rows` greedy requests of random ids that nothing stops."""
        vocab = self.engine.info.vocab_size
        for _ in range(rows):
            ids = [rng.randrange(vocab) for _ in range(prompt)]
            # Imposed acceptance is drawn by seed and position: rows of one seed would accept alike, and end together.
            params = SamplingParams(max_tokens=new, temperature=0.0, seed=rng.getrandbits(32))
            self.engine.submit(str(next(self.numbers)), ids, params)

    def drain(self) -> int:
        """Run until nothing is left; the tokens that came."""
        tokens = 0
        while not self.engine.idle:
            tokens += sum(len(delta.tokens) for delta in self.engine.advance())
        return tokens

    def prefill(self, rows: int) -> None:
        """Advance until every row has its first token."""
        started: set[str] = set()
        while len(started) < rows:
            started |= {delta.request.id for delta in self.engine.advance() if delta.tokens}

    def decode(self, steps: int) -> tuple[int, float]:
        """Tokens and seconds of so many steps."""
        torch.cuda.synchronize()
        begin, tokens = time.perf_counter(), 0
        for _ in range(steps):
            tokens += sum(len(delta.tokens) for delta in self.engine.advance())
        torch.cuda.synchronize()
        return tokens, time.perf_counter() - begin

    def abort(self) -> None:
        """End every request and what is in flight."""
        from overdrive.types import Finish, FinishReason

        self.engine.abort_all(Finish(FinishReason.ABORT))
        self.drain()


def open_bench(args: argparse.Namespace, drafter: bool, console: Console) -> Bench:
    """An engine of the model's shape with random weights, and a random head where drafts are wanted."""
    dial = Dial()
    draft = DraftOptions(draft="none")
    if drafter:
        draft = DraftOptions(draft="eagle3", draft_model="dummy", drafts=max(args.k), simulate_acceptance=args.accept)
    options = EngineOptions(
        model=ModelOptions(load_format="dummy", precision=args.precision, max_model_len=args.max_len),
        memory=MemoryOptions(prefix_cache=False, kv_tokens=args.kv_tokens),
        scheduler=SchedulerOptions(max_rows=max(args.rows), max_queue=4096),
        draft=draft,
        device=DeviceOptions(device="cuda"),
    )
    started = time.perf_counter()
    stages: dict[str, float] = {}

    def progress(label: str, done: int, total: int) -> None:
        stages[label] = time.perf_counter() - started

    engine = build(args.model, options, progress, controller=dial)
    torch.cuda.synchronize()
    console.print({label: f"until {seconds:.1f} s" for label, seconds in stages.items()})
    used = torch.cuda.memory_allocated() >> 20
    console.print(
        f"{'with' if drafter else 'without'} a drafter: ready in {time.perf_counter() - started:.1f} s, {used} MiB"
    )
    return Bench(engine, dial)


def offline(bench: Bench, rows: int, repeats: int) -> float:
    """Output tokens per second of one batch, prefill included: the median of `repeats` after two warm-up batches."""
    rates = []
    for repeat in range(repeats + 2):
        bench.submit(rows, PROMPT, NEW, random.Random(repeat))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        tokens = bench.drain()
        torch.cuda.synchronize()
        rates.append(tokens / (time.perf_counter() - begin))
    return statistics.median(rates[2:])


def steady(arms: Sequence[tuple[Bench, int]], rows: int, context: int, steps: int) -> list[list[float]]:
    """Tokens per second of every block of steps of every arm, which take turns. Rows are filled for real."""
    benches = list({id(bench): bench for bench, _ in arms}.values())
    room = (steps + 60) * (2 + max(k for _, k in arms))
    for bench in benches:
        bench.dial.drafts = 0
        bench.submit(rows, context, room, random.Random(0))
        bench.prefill(rows)
    rates: list[list[float]] = [[] for _ in arms]
    for turn in range(1 + steps // BLOCK):
        for index, (bench, k) in enumerate(arms):
            bench.dial.drafts = k
            bench.decode(2)  # the step behind a change still has the old plan's results to settle
            tokens, seconds = bench.decode(BLOCK)
            if turn:
                rates[index].append(tokens / seconds)
    for bench in benches:
        bench.abort()
    return rates


@dataclass
class Trace:
    """What a profiler saw of steady decode. idle: share of the time in which nothing ran. step: microseconds.

    kernels: name, launches and microseconds of each in a step.
    """

    idle: float
    step: float
    kernels: list[tuple[str, float, float]]


def trace(bench: Bench, k: int, rows: int, context: int, steps: int = 30) -> Trace:
    """Steady decode under the profiler."""
    bench.dial.drafts = 0
    bench.submit(rows, context, (steps + 40) * (k + 2), random.Random(0))
    bench.prefill(rows)
    bench.dial.drafts = k
    bench.decode(10)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        bench.decode(steps)
    bench.abort()
    found = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((e.time_range.start, e.time_range.end) for e in found)
    # The first and last steps are cut off by the profiler's own start and end.
    begin, end = spans[len(spans) // 10][0], spans[-1 - len(spans) // 10][1]
    busy, reached = 0.0, begin
    for start, stop in spans:
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            busy, reached = busy + stop - start, stop
    times: dict[str, list[float]] = {}
    for event in found:
        times.setdefault(event.name, []).append(event.time_range.end - event.time_range.start)
    kernels = [(name, len(t) / steps, sum(t) / steps) for name, t in times.items()]
    step = (spans[-1][1] - spans[0][0]) / steps
    return Trace(1 - busy / (end - begin), step, sorted(kernels, key=lambda kernel: -kernel[2]))


def table(console: Console, title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    drawn = Table(title=title)
    for name in head:
        drawn.add_column(name, justify="right")
    for line in lines:
        drawn.add_row(*line)
    console.print(drawn)


def fits(bench: Bench, rows: int, tokens: int) -> bool:
    return rows * (tokens + 64) <= bench.engine.info.kv_tokens


def run_offline(args: argparse.Namespace, plain: Bench | None, drafting: Bench | None, console: Console) -> None:
    arms: list[tuple[str, Bench, int]] = [("off", plain, 0)] if plain else []
    arms += [(f"K = {k}", drafting, k) for k in args.k] if drafting else []
    lines = []
    for rows in args.rows:
        rates = []
        for _, bench, k in arms:
            bench.dial.drafts = k
            rates.append(offline(bench, rows, args.repeats))
        lines.append([str(rows), *(f"{rate:,.0f}" for rate in rates)])
        console.print(lines[-1])
    table(console, "256 in, 256 out: output tokens/s", ["rows", *(name for name, _, _ in arms)], lines)


def run_steady(args: argparse.Namespace, drafting: Bench, console: Console) -> None:
    lines = []
    for context in args.contexts:
        for rows in args.rows:
            if not fits(drafting, rows, context + args.steps * (2 + max(args.k))):
                continue
            rates = steady([(drafting, k) for k in args.k], rows, context, args.steps)
            medians = [statistics.median(arm) for arm in rates]
            spread = [(max(arm) - min(arm)) / statistics.median(arm) for arm in rates]
            lines.append(
                [str(context), str(rows), *(f"{m:,.0f} ±{s / 2:.0%}" for m, s in zip(medians, spread, strict=True))]
            )
            console.print(lines[-1])
    table(console, "steady decode: tokens/s", ["context", "rows", *(f"K = {k}" for k in args.k)], lines)


def run_keep(args: argparse.Namespace, plain: Bench, drafting: Bench, console: Console) -> None:
    lines = []
    for rows in (1, 30, 250):
        if rows > max(args.rows):
            continue
        off, held = steady([(plain, 0), (drafting, 0)], rows, PROMPT, 2 * args.steps)
        ratio = statistics.median(a / b for a, b in zip(off, held, strict=True)) - 1
        lines.append([str(rows), f"{statistics.median(off):,.0f}", f"{statistics.median(held):,.0f}", f"{ratio:+.2%}"])
    table(console, "K = 0 with a drafter over no drafter", ["rows", "none", "held", "cost"], lines)


def run_idle(args: argparse.Namespace, drafting: Bench, console: Console) -> None:
    lines, ks = [], sorted({0, *args.k})
    for rows in (1, 30, 250):
        if rows > max(args.rows):
            continue
        traces = [trace(drafting, k, rows, PROMPT) for k in ks]
        lines.append([str(rows), *(f"{one.idle:.1%}" for one in traces)])
        for k, one in zip(ks, traces, strict=True):
            head = ["kernel", "launches", "us", "share"]
            most = [
                [name[:70], f"{count:.1f}", f"{us:.0f}", f"{us / one.step:.1%}"]
                for name, count, us in one.kernels[: args.kernels]
            ]
            table(console, f"{rows} rows, K = {k}: a step of {one.step:,.0f} us", head, most)
    table(console, "device idle in steady decode", ["rows", *(f"K = {k}" for k in ks)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--k", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--accept", default="0.7,0.49,0.343")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 5, 10, 30, 70, 100, 250])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--parts", nargs="+", default=["offline", "steady", "keep", "idle"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--max-len", type=int, default=8192)
    parser.add_argument("--kernels", type=int, default=16, help="lines of each breakdown")
    parser.add_argument("--kv-tokens", type=int, default=0)
    parser.add_argument("--few", type=int, default=few.MOST_TOKENS, help="tokens up to which products are ours, or 0")
    parser.add_argument("--apart", action="store_true", help="rotate and store by a launch of its own in every step")
    args = parser.parse_args()
    few.MOST_TOKENS = args.few
    attention.MOST_FOLDED = 0.0 if args.apart else attention.MOST_FOLDED
    console = Console(width=110)
    parts: set[str] = set(args.parts)
    plain = open_bench(args, False, console) if parts & {"offline", "keep"} else None
    drafting = open_bench(args, True, console) if args.k != [] and parts else None
    if "offline" in parts:
        run_offline(args, plain, drafting, console)
    if "keep" in parts and plain and drafting:
        run_keep(args, plain, drafting, console)
    if "idle" in parts and drafting:
        run_idle(args, drafting, console)
    if "steady" in parts and drafting:
        run_steady(args, drafting, console)


if __name__ == "__main__":
    main()
