"""What deciding K every step is worth on a CUDA device: auto beside every fixed K, by concurrency, context, acceptance.

Run: PYTHONPATH=src python benchmarks/gpu_auto.py [--model llama-3.1-8b] [--parts cells ramp offline]
     [--rows 1 5 30 100 250] [--contexts 256 1024 4096] [--accept 0.5 0.7 0.85] [--steps 100] [--json FILE]

One engine with random weights and imposed acceptance (every draft is accepted with the given chance if those before it
were), started with `--speculation auto`, its costs measured at its start. A switch in front of its gear box lets the
arms take turns on the same rows.

cells: steady decode. Arms run in blocks of 10 steps, two steps not counted before each, `--steps` steps an arm at
   least, in an order drawn anew every turn: a GPU slows down behind a block of long, hot steps, and an order that only
   turned would have the same arm bear it every time. The gear box starts each cell with its costs and knows nothing of
   acceptance; it learns from its own steps, of which the first are not counted. A speed is the tokens that the plans
   promise at the imposed acceptance, over measured seconds: what chance accepts in a hundred steps scatters by more
   than the 2 % in question. The best fixed arm is picked by the even turns and auto compared with it in the odd ones,
   and the other way round; the figure is the mean of both. Rows are filled anew before they have grown by half, or by
   512 tokens. Fewer than eight rows take three times as many steps: what a gear box believes of them scatters more.
ramp: 1 -> 250 -> 1 requests of 256 in, 256 out at .7, in turn by every arm: seconds. The oracle knows the acceptance
   and takes, at every number of running rows, the K that was fastest in the cells next to it, those of an earlier run
   in FILE included.
offline: C prompts of 256 random ids, 256 new tokens each, prefill included, at .7: tokens/s of the arms.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from gpu import Bench, offline, table
from overdrive.config import DeviceOptions, DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.device import base
from overdrive.device.cuda import device as cuda_device
from overdrive.engine import build
from overdrive.heap import freeze_heap
from overdrive.policy.controller import Controller, LoadView
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox
from overdrive.types import Finish, FinishReason, Outcome, Plan, Step, Why

BLOCK, UNCOUNTED = 10, 2
"""Steps of a block, and before it."""
FEW_ROWS, FEW_TIMES = 8, 3
"""Rows below which a cell takes so many times the steps."""
LEARNT = 300
"""Rounds of rows that the gear box sees at the start of a cell: so many steps of one row, and 30 steps at least."""
SLACK = 128
"""Tokens that a row may grow by beyond what was meant, by luck."""

FIXED = (0, 1, 2, 3, 5, 7)
AUTO = "auto"
RAMP = (1, 2, 5, 10, 30, 70, 100, 250, 100, 70, 30, 10, 5, 2, 1)
ACCEPTANCE = 0.7


class Switch(Controller):
    """A gear box and other controllers that take turns. chosen: how often each K was, since somebody cleared it."""

    def __init__(self, gearbox: Controller) -> None:
        assert isinstance(gearbox, Gearbox)
        self.gearbox = gearbox
        self.other: Controller | None = Held(0)
        self.chosen: Counter[int] = Counter()

    @property
    def plans(self) -> Sequence[int]:
        return self.gearbox.plans

    def choose(self, view: LoadView) -> Plan:
        plan = (self.other or self.gearbox).choose(view)
        self.chosen[plan.drafts] += 1
        return plan

    def observe(self, step: Step, outcome: Outcome) -> None:
        if step.plan.why.rule == Held.RULE:
            self.gearbox.follow(step)
        else:
            self.gearbox.observe(step, outcome)

    def forget(self) -> None:
        """A gear box that knows the same costs and nothing of acceptance."""
        old = self.gearbox
        estimator = AcceptanceEstimator(old.estimator.sources, old.estimator.max_drafts)
        self.gearbox = Gearbox(old.costs, estimator, self.plans)


class Held(Controller):
    """One K, or one for every number of rows."""

    RULE = "held"
    plans = FIXED

    def __init__(self, drafts: int, by_rows: Mapping[int, int] | None = None) -> None:
        self._drafts, self._by_rows = drafts, by_rows or {}

    def choose(self, view: LoadView) -> Plan:
        rows = max(1, view.decode_rows)
        nearest = min(self._by_rows, key=lambda known: abs(math.log(known / rows)), default=0)
        return Plan(self._by_rows.get(nearest, self._drafts), Why(rule=self.RULE))


@dataclass
class Rig:
    """The engine, its switch, and the rates of imposed acceptance that its graphs read."""

    bench: Bench
    switch: Switch
    rates: Tensor
    filled: tuple[int, int] = (0, 0)
    """Rows, and the positions of each when they were filled."""
    grown: float = 0.0
    """Tokens that each row is expected to have grown by since."""

    def arm(self, name: str | int) -> None:
        self.switch.other = None if name == AUTO else Held(int(name))

    def accept(self, chance: float) -> None:
        self.rates.fill_(chance)
        torch.cuda.synchronize()

    def clear(self) -> None:
        self.bench.engine.abort_all(Finish(FinishReason.ABORT))
        self.bench.drain()
        self.filled = (0, 0)


@dataclass
class Cell:
    """context: of every row when it was filled. rates: tokens/s by arm and turn. plans: of auto, by K. ratio: auto over
    the best fixed arm."""

    accept: float
    context: int
    rows: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    plans: dict[int, int] = field(default_factory=dict)
    ratio: float = 0.0
    best: str = ""

    def judge(self) -> None:
        halves = [slice(0, None, 2), slice(1, None, 2)]
        fixed = [arm for arm in self.rates if arm != AUTO]

        def speed(arm: str, half: slice) -> float:
            return statistics.median(self.rates[arm][half])

        ratios = []
        for picked, compared in (halves, halves[::-1]):
            best = max(fixed, key=lambda arm: speed(arm, picked))
            ratios.append(speed(AUTO, compared) / speed(best, compared))
        self.ratio = statistics.mean(ratios)
        self.best = max(fixed, key=lambda arm: statistics.median(self.rates[arm]))

    @property
    def line(self) -> list[str]:
        medians = {arm: statistics.median(rates) for arm, rates in self.rates.items()}
        low, high = (statistics.quantiles(self.rates[AUTO], n=4)[at] / medians[AUTO] - 1 for at in (0, 2))
        plans = " ".join(f"{k}:{count}" for k, count in sorted(self.plans.items()))
        shown = [f"{medians[arm]:,.0f}" for arm in self.rates]
        return [f"{self.accept}", str(self.context), str(self.rows), *shown, self.best, f"{self.ratio:.3f}",
                f"{low:+.1%} {high:+.1%}", plans]  # fmt: skip


def open_rig(args: argparse.Namespace, console: Console) -> Rig:
    """The engine, with hands on its controller and its imposed acceptance."""
    kept: list[base.Imposed] = []
    switches: list[Switch] = []

    def impose(*given: object) -> base.Imposed | None:
        imposed = base.impose(*given)  # type: ignore[arg-type]
        kept.extend([imposed] if imposed else [])
        return imposed

    def wrap(controller: Controller) -> Controller:
        switches.append(Switch(controller))
        return switches[0]

    cuda_device.impose = impose  # the tensor that graphs read is nobody else's to change
    options = EngineOptions(
        model=ModelOptions(load_format="dummy", precision=args.precision, max_model_len=8192),
        memory=MemoryOptions(prefix_cache=False, kv_tokens=args.kv_tokens),
        scheduler=SchedulerOptions(max_rows=max(args.rows), max_queue=4096),
        draft=DraftOptions(
            draft="eagle3", draft_model="dummy", drafts=max(FIXED), speculation=AUTO, simulate_acceptance="0.7"
        ),
        device=DeviceOptions(device="cuda"),
    )
    started, stages = time.perf_counter(), {}

    def progress(label: str, done: int, total: int) -> None:
        stages[label] = f"until {time.perf_counter() - started:.1f} s"

    engine = build(args.model, options, progress, wrap=wrap)
    freeze_heap()  # as the server does: a full collection would stop one arm or another for 200 ms
    console.print(f"ready in {time.perf_counter() - started:.1f} s: {stages}; KV for {engine.info.kv_tokens} tokens")
    return Rig(Bench(engine, switches[0]), switches[0], kept[0].rates)  # type: ignore[arg-type]


def promised(chosen: Mapping[int, int], accept: float, rows: int) -> float:
    """Tokens that so many plans of each K are worth."""
    return rows * sum(count * sum(accept**j for j in range(k + 1)) for k, count in chosen.items())


def advance(rig: Rig, steps: int, accept: float) -> None:
    rig.switch.chosen.clear()
    for _ in range(steps):  # each turn ends when the step before its own is done: no need to stop the device
        rig.bench.engine.advance()
    rig.grown += promised(rig.switch.chosen, accept, 1)


def run_block(rig: Rig, arm: str | int, accept: float, rows: int) -> float:
    """Tokens/s of one block."""
    rig.arm(arm)
    advance(rig, UNCOUNTED, accept)
    begin = time.perf_counter()
    advance(rig, BLOCK, accept)
    return promised(rig.switch.chosen, accept, rows) / (time.perf_counter() - begin)


def growth(context: int) -> int:
    """Tokens that rows of a cell may grow by before they are filled anew."""
    return max(512, context // 2)


def fill(rig: Rig, rows: int, context: int, expected: float) -> None:
    """Rows with so many positions behind them, and room for `expected` more tokens each, that nothing ends."""
    if rig.filled == (rows, context) and rig.grown + expected <= growth(context):
        return
    rig.clear()
    rig.arm(0)
    rig.bench.submit(rows, context, 8000 - context, random.Random(0))
    rig.bench.prefill(rows)
    rig.filled, rig.grown = (rows, context), 0.0


def measure(rig: Rig, cell: Cell, steps: int) -> None:
    """All arms in turn."""
    arms = [*FIXED, AUTO]
    a_turn = sum(promised({k: 1}, cell.accept, 1) for k in (*FIXED, 3)) * (BLOCK + UNCOUNTED)
    rig.accept(cell.accept)
    rig.switch.forget()
    learning = max(30, LEARNT // cell.rows)
    fill(rig, cell.rows, cell.context, promised({3: learning}, cell.accept, 1))
    rig.arm(1)  # all rows draft, so that a gear box that is new knows that its drafter lacks nothing of them
    advance(rig, UNCOUNTED, cell.accept)
    rig.arm(AUTO)
    advance(rig, learning, cell.accept)
    cell.rates = {str(arm): [] for arm in arms}
    plans: Counter[int] = Counter()
    rng = random.Random(f"{cell.accept} {cell.context} {cell.rows}")
    for _ in range(-(-steps * (FEW_TIMES if cell.rows < FEW_ROWS else 1) // BLOCK)):
        fill(rig, cell.rows, cell.context, a_turn)
        for arm in rng.sample(arms, len(arms)):
            cell.rates[str(arm)].append(run_block(rig, arm, cell.accept, cell.rows))
            plans.update(rig.switch.chosen if arm == AUTO else {})
    cell.plans = dict(plans)
    cell.judge()


def run_cells(rig: Rig, args: argparse.Namespace, console: Console, report: dict[str, object]) -> list[Cell]:
    cells: list[Cell] = []
    room = rig.bench.engine.info.kv_tokens
    for context in args.contexts:
        for rows in args.rows:
            most = min(rows, room // (context + growth(context) + SLACK))
            for accept in args.accept:
                if time.perf_counter() > args.until:
                    console.print("out of time: the rest is left out")
                    return cells
                cell = Cell(accept, context, most)
                measure(rig, cell, args.steps)
                cells.append(cell)
                console.print(" ".join(cell.line))
                report["cells"] = [asdict(one) for one in cells]
                args.json.write_text(json.dumps(report))
    return cells


def show_cells(cells: Sequence[Cell], console: Console) -> None:
    head = ["p", "context", "rows", *(f"K={k}" for k in FIXED), AUTO, "best", "auto/best", "quartiles", "auto's plans"]
    table(console, "steady decode: tokens/s", head, [cell.line for cell in cells])
    ratios = [cell.ratio for cell in cells]
    console.print(f"auto over the best fixed K: median {statistics.median(ratios):.3f}, least {min(ratios):.3f}")


def run_ramp(rig: Rig, cells: Sequence[Cell], args: argparse.Namespace, console: Console) -> dict[str, list[float]]:
    """Seconds by arm."""
    known = {cell.rows: int(cell.best) for cell in cells if cell.accept == ACCEPTANCE and cell.context == 256}
    rig.accept(ACCEPTANCE)
    arms: dict[str, Controller | None] = {AUTO: None, "oracle": Held(0, known), "K=0": Held(0), "K=3": Held(3)}
    arms = {name: arms[name] for name in args.ramp_arms}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(args.repeats):
        for name in list(arms)[:: 1 - 2 * (repeat % 2)]:
            rig.switch.forget()
            rig.switch.other = arms[name]
            seconds[name].append(ramp(rig.bench))
        console.print({name: [f"{s:.2f}" for s in took] for name, took in seconds.items()}, known)
    return seconds


def ramp(bench: Bench) -> float:
    """Seconds of a closed loop whose concurrency rises and falls with the requests that are done."""
    rng, running = random.Random(1), 0
    started = time.perf_counter()
    for wanted in RAMP:
        begun = 0
        while begun < max(2, wanted):
            while running < wanted and begun < max(2, wanted):
                bench.submit(1, 256, 256, rng)
                running, begun = running + 1, begun + 1
            running -= sum(delta.finish is not None for delta in bench.engine.advance())
        while running > wanted:
            running -= sum(delta.finish is not None for delta in bench.engine.advance())
    bench.drain()
    return time.perf_counter() - started


def run_offline(rig: Rig, args: argparse.Namespace, console: Console) -> list[list[str]]:
    rig.accept(ACCEPTANCE)
    lines = []
    for rows in args.offline_rows:
        rates = []
        for arm in (0, 1, 3, AUTO):
            rig.switch.forget()
            rig.arm(arm)
            rates.append(offline(rig.bench, rows, args.repeats))
        lines.append([str(rows), *(f"{rate:,.0f}" for rate in rates), f"{rates[-1] / max(rates[:-1]):.3f}"])
        console.print(lines[-1])
    table(console, "256 in, 256 out at .7: tokens/s", ["rows", "K=0", "K=1", "K=3", AUTO, "auto/best"], lines)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--parts", nargs="+", default=["cells", "ramp", "offline"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 5, 30, 100, 250])
    parser.add_argument("--offline-rows", type=int, nargs="+", default=[1, 10, 30, 100, 250])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--accept", type=float, nargs="+", default=[0.5, 0.7, 0.85])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ramp-arms", nargs="+", default=[AUTO, "oracle", "K=0", "K=3"])
    parser.add_argument("--kv-tokens", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("gpu_auto.json"))
    parser.add_argument("--seconds", type=float, default=math.inf, help="cells that begin later are left out")
    args = parser.parse_args()
    args.until = time.perf_counter() + args.seconds
    console = Console(width=150)
    report: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    report |= {"model": args.model, "steps": args.steps}
    rig = open_rig(args, console)
    report["costs"] = rig.bench.engine.info.costs
    earlier = [Cell(**cell) for cell in json.loads(args.json.read_text())["cells"]] if args.json.exists() else []
    cells = run_cells(rig, args, console, report) if "cells" in args.parts else []
    rig.clear()
    if cells:
        show_cells(cells, console)
    cells = [*earlier, *cells]
    report["cells"] = [asdict(cell) for cell in cells]
    if "ramp" in args.parts:
        report["ramp"] = run_ramp(rig, cells, args, console)
        args.json.write_text(json.dumps(report))
    if "offline" in args.parts:
        report["offline"] = run_offline(rig, args, console)
    args.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
