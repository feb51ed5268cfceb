"""One stream's rate by the number of drafts, on real prompts: what speculation is worth to a single user.

Run: PYTHONPATH=src python benchmarks/drafting.py --prompts FILE... [--draft auto] [--k 0 1 2 3 4 5] [--count 12]
     [--new 128] [--temperature 0]

FILE holds JSON lines with `turns`, `prompt` or `question`. Every prompt is answered once with each K, in an order that
turns from prompt to prompt, by one engine in one process, so that a machine whose speed changes changes all arms alike.
Time counts from the first token to the last. The draft and step columns are medians of device times.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from overdrive.config import DraftOptions, EngineOptions, ModelOptions
from overdrive.engine import Engine, build
from overdrive.text import open_text
from overdrive.types import SamplingParams
from shared import Dial


@dataclass
class Arm:
    """seconds and tokens behind the first token; rounds; seconds of draft and absorb launches."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    drafting: float = 0.0
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def texts(path: Path) -> Iterator[str]:
    """First user turn of each line."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in file:
            raw = json.loads(line)
            yield raw["turns"][0] if "turns" in raw else raw.get("prompt") or raw["question"]


def answer(engine: Engine, name: str, ids: list[int], params: SamplingParams, arm: Arm) -> list[int]:
    """Run one request alone and add it to the arm."""
    engine.submit(name, ids, params)
    tokens: list[int] = []
    first, before = 0.0, engine.stats()
    while not engine.idle:
        for delta in engine.advance():
            tokens += delta.tokens
        if tokens and not first:
            first, before, begun = time.perf_counter(), engine.stats(), len(tokens)
    seconds, after = time.perf_counter() - first, engine.stats()
    if len(tokens) > begun:
        arm.seconds += seconds
        arm.tokens += len(tokens) - begun
        arm.rates.append((len(tokens) - begun) / seconds)
        arm.steps += after.steps - before.steps
        spent = [b - a for a, b in zip(before.launch_seconds, after.launch_seconds, strict=True)]
        arm.drafting += spent[0] + spent[3]
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--draft-model", default="")
    parser.add_argument("--k", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    dial = Dial()
    draft = DraftOptions(draft=options.draft, draft_model=options.draft_model, drafts=max(options.k))
    engine = build(options.model, EngineOptions(draft=draft), lambda *_: None, dial)
    tokenizer, template = open_text(Path(engine.info.source), ModelOptions())
    numbers = itertools.count()
    for path in options.prompts:
        arms: dict[int, Arm] = defaultdict(Arm)
        chosen = list(itertools.islice(texts(path), options.count))
        for turn, text in enumerate(track(chosen, path.name)):
            ids = tokenizer.encode(template.render([{"role": "user", "content": text}]), add_special=False)
            stops = engine.info.eos_ids
            params = SamplingParams(
                max_tokens=options.new, temperature=options.temperature, seed=turn, stop_token_ids=stops
            )
            shift = turn % len(options.k)
            said = []
            for k in (*options.k[shift:], *options.k[:shift]):
                dial.drafts = k
                said.append(answer(engine, f"r{next(numbers)}", ids, params, arms[k]))
            if any(tokens != said[0] for tokens in said):
                print(f"prompt {turn}: the text differs between arms")
        show(path, engine, arms, options)
    engine.close()


def show(path: Path, engine: Engine, arms: dict[int, Arm], options: argparse.Namespace) -> None:
    table = Table(title=f"{path.name}: {engine.info.drafter}, one stream, {options.new} tokens at most")
    for name in ("K", "tokens/s", "over K=0", "median of prompts", "tokens/round", "ms/round", "of it drafting"):
        table.add_column(name, justify="right")
    plain = arms[options.k[0]]
    for k in options.k:
        arm = arms[k]
        ratios = statistics.median(a / b for a, b in zip(arm.rates, plain.rates, strict=True))
        table.add_row(
            str(k),
            f"{arm.rate:.0f}",
            f"{arm.rate / plain.rate:.2f}x",
            f"{ratios:.2f}x",
            f"{arm.tokens / arm.steps:.2f}",
            f"{1000 * arm.seconds / arm.steps:.2f}",
            f"{1000 * arm.drafting / arm.steps:.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
