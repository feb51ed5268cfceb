"""What deciding K anew every step is worth: tokens a second of auto beside fixed settings, at several numbers of rows.

Run: PYTHONPATH=src python benchmarks/auto.py PROMPTS [--rows 1 4 16] [--fixed 0 1 3] [--builds 3] [--repeats 12]
     [--block 24] [--drafts 3] [--temperature 0] [--model smollm2]

PROMPTS: JSON lines with "prompt", "messages" or "turns" in each. One engine for each arm in one process, all answering
the same prompts, a block of steps each in turn, in an order that turns too: a machine whose speed changes changes all
arms alike. Whenever an answer ends the next prompt takes its row, so prompts are read within the blocks as well, and
blocks differ by that. An arm's speed is all its committed tokens over all its time; quartiles are of its blocks' speeds
over those of the first arm's in the same turn. Auto is told by its speed over that of the best fixed arm.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine import Engine, build
from overdrive.text import open_text
from overdrive.types import Finish, FinishReason, SamplingParams

ROOM = 1024  # tokens of each row
WARM = 2  # blocks of an arm that are not counted: estimates and caches settle


@dataclass
class Found:
    """Of an arm at some number of rows: tokens and seconds of every block, and steps by their K."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    plans: Counter[int] = field(default_factory=Counter)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return sum(self.tokens) / sum(self.seconds)

    def over(self, base: Found) -> list[float]:
        """Speeds of the blocks over those of `base`, less one."""
        mine, other = (np.divide(found.tokens, found.seconds) for found in (self, base))
        return list(mine / other - 1)


@dataclass
class Arm:
    """An engine with one setting of --speculation."""

    name: str
    engine: Engine
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    numbers: Iterator[int] = field(default_factory=itertools.count)
    running: int = 0

    def fill(self, rows: int) -> None:
        """Prompts under way until `rows` are."""
        while self.running < rows:
            number = next(self.numbers)
            self.engine.submit(f"r{number}", self.prompts[number % len(self.prompts)], self.params)
            self.running += 1

    def block(self, rows: int, steps: int) -> tuple[int, float]:
        """Tokens and seconds of so many steps."""
        tokens, started = 0, time.perf_counter()
        for _ in range(steps):
            self.fill(rows)
            deltas = self.engine.advance()
            tokens += sum(len(delta.tokens) for delta in deltas)
            self.running -= sum(delta.finish is not None for delta in deltas)
        return tokens, time.perf_counter() - started

    def end(self) -> None:
        self.engine.abort_all(Finish(FinishReason.ABORT))
        while not self.engine.idle:
            self.engine.advance()
        self.running = 0


def open_arm(name: str, args: argparse.Namespace, texts: Sequence[object]) -> Arm:
    options = EngineOptions(
        model=ModelOptions(max_model_len=ROOM),
        memory=MemoryOptions(kv_tokens=max(args.rows) * ROOM, prefix_cache=False),
        scheduler=SchedulerOptions(max_rows=max(args.rows)),
        draft=DraftOptions(speculation=name, drafts=args.drafts, draft=args.draft),
    )
    engine = build(args.model, options, lambda *_: None)
    tokenizer, template = open_text(Path(engine.info.source), options.model)
    prompts = [tokenizer.encode(template.render(text), add_special=False) for text in texts]
    params = SamplingParams(
        max_tokens=args.new, temperature=args.temperature, stop_token_ids=tuple(engine.info.eos_ids), seed=1
    )
    return Arm(name, engine, [prompt for prompt in prompts if len(prompt) + args.new < ROOM], params)


def read_prompts(path: Path) -> list[object]:
    """Conversations, of which the first turn is asked."""
    found: list[object] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        first = item.get("prompt") or (item.get("turns") or [""])[0]
        found.append(item.get("messages") or [{"role": "user", "content": first}])
    return found


def measure(arms: Sequence[Arm], rows: int, args: argparse.Namespace, found: dict[str, Found]) -> None:
    for turn in track(range(WARM + args.repeats), f"{rows} rows"):
        shift = turn % len(arms)
        for arm in (*arms[shift:], *arms[:shift]):
            before = arm.engine.stats().plans
            tokens, seconds = arm.block(rows, args.block)
            if turn >= WARM:
                found[arm.name].tokens.append(tokens)
                found[arm.name].seconds.append(seconds)
                plans = Counter(dict(enumerate(arm.engine.stats().plans)))
                found[arm.name].plans += plans - Counter(dict(enumerate(before)))
    for arm in arms:
        arm.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--fixed", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--drafts", type=int, default=3, help="most drafts of auto")
    parser.add_argument("--builds", type=int, default=3, help="engines are built anew so often")
    parser.add_argument("--repeats", type=int, default=12, help="blocks of each build")
    parser.add_argument("--block", type=int, default=24, help="steps")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    names = [*(f"fixed:{k}" for k in args.fixed), "auto"]
    found = {rows: {name: Found() for name in names} for rows in args.rows}
    texts = read_prompts(args.prompts)
    for _ in range(args.builds):
        arms = [open_arm(name, args, texts) for name in names]
        for rows in args.rows:
            measure(arms, rows, args, found[rows])
        for arm in arms:
            arm.engine.close()
    show(found, args)


def show(found: dict[int, dict[str, Found]], args: argparse.Namespace) -> None:
    table = Table(title=f"{args.builds} times {args.repeats} blocks of {args.block} steps")
    for name in ("rows", "arm", "tokens/s", "over the first", "quartiles", "steps by K"):
        table.add_column(name, justify="left" if name in ("arm", "steps by K") else "right")
    console = Console(width=120)
    for rows, arms in found.items():
        base = next(iter(arms.values()))
        for name, arm in arms.items():
            low, _, high = statistics.quantiles(arm.over(base), n=4)
            plans = " ".join(f"{k}:{count}" for k, count in sorted(arm.plans.items()))
            ratio = f"{arm.speed / base.speed - 1:+.1%}"
            table.add_row(str(rows), name, f"{arm.speed:.1f}", ratio, f"{low:+.1%} .. {high:+.1%}", plans)
        best = max((name for name in arms if name != "auto"), key=lambda name: arms[name].speed)
        gain = arms["auto"].speed / arms[best].speed - 1
        console.print(f"{rows} rows: auto is {gain:+.1%} of the best fixed arm, {best}")
    console.print(table)


if __name__ == "__main__":
    main()
