"""Time of one step on SmolLM2 by rows and drafts, and with host work overlapped or not: what makes drafts cheap.

Run: PYTHONPATH=src python benchmarks/step.py [--rows 1 2 4 8 16 32 64] [--context 256] [--repeats 3]

Drafts are random tokens, nearly always refused, so a step verifies all of them and yields one token a row: the table is
the price of a step, not its gain. All arms run in turn in one process; every figure is a median over steps and repeats.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import replace

import torch
from torch import Tensor

import overdrive.engine as engine_room
from overdrive.config import DeviceOptions, DraftOptions, EngineOptions, ModelOptions
from overdrive.draft import Room
from overdrive.draft.base import Drafts, Fed
from overdrive.engine import Engine
from overdrive.types import PageEntry, SamplingParams
from shared import Dial

STEPS = 16
VOCAB = 49152


class RandomDrafter:
    """Always offers as many tokens as are wanted."""

    sources = ("random",)
    taps = ()

    def enter(self, entry: PageEntry) -> None: ...

    def admit(self, slot: int, tokens: object, computed: int) -> None: ...

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        return Drafts(torch.randint(0, VOCAB, (len(slots), width)), caps.clone(), torch.zeros_like(caps))

    def absorb(self, fed: Fed) -> None: ...

    def extend(self, slots: Tensor, drafts: int) -> None: ...


class RandomChoice:
    """As if a start had chosen that drafter."""

    name = "random"
    model = ""

    def page_bytes(self, page_size: int) -> int:
        return 0

    def slot_bytes(self) -> int:
        return 0

    def open(self, room: Room) -> RandomDrafter:
        return RandomDrafter()


def open_engine(overlap: str, dial: Dial) -> Engine:
    engine_room.choose = lambda *_: RandomChoice()
    options = EngineOptions(
        model=ModelOptions(max_model_len=2048),
        draft=DraftOptions(draft="ngram", drafts=7),
        device=DeviceOptions(overlap=overlap),
    )
    options = replace(options, scheduler=replace(options.scheduler, max_step_tokens=2048))
    return engine_room.build("smollm2", options, lambda *_: None, dial)


def prompt(number: int, length: int) -> list[int]:
    """Random tokens: what stands in the context does not matter here."""
    rng = random.Random(number)
    return [rng.randrange(100, VOCAB) for _ in range(length)]


def steady_steps(engine: Engine, dial: Dial, rows: int, drafts: int, context: int, name: str) -> list[float]:
    """Seconds of each step once all prompts are in. Prompt i is the same every time: the prefix cache has it."""
    dial.drafts = 0
    params = SamplingParams(max_tokens=(drafts + 1) * STEPS * 2 + 64, temperature=0.0)
    requests = [engine.submit(f"{name}-{i}", prompt(i, context), params) for i in range(rows)]
    while any(not request.output_len for request in requests):
        engine.advance()
    dial.drafts = drafts
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        engine.advance()
        times.append(time.perf_counter() - started)
    for request in requests:
        engine.abort(request.id)
    while not engine.idle:
        engine.advance()
    return times[4:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    dials = {overlap: Dial() for overlap in ("off", "on")}
    engines = {overlap: open_engine(overlap, dial) for overlap, dial in dials.items()}
    cells = [(rows, drafts) for rows in args.rows for drafts in (0, 1, 3, 7) if rows * (drafts + 1) <= 256]
    times: dict[tuple[str, int, int], list[float]] = {}
    for repeat in range(args.repeats):
        for rows, drafts in cells:
            for overlap, engine in engines.items():
                name = f"{overlap}-{rows}-{drafts}-{repeat}"
                found = steady_steps(engine, dials[overlap], rows, drafts, args.context, name)
                times.setdefault((overlap, rows, drafts), []).extend(found)
    base = statistics.median(times["off", args.rows[0], 0])
    print(f"{'rows':>5} {'K':>3} {'tokens':>7} {'ms':>8} {'x first':>8} {'ms overlapped':>14} {'overlapped/off':>15}")
    for rows, drafts in cells:
        off, on = (statistics.median(times[overlap, rows, drafts]) for overlap in ("off", "on"))
        tokens = rows * (drafts + 1)
        price = f"{rows:>5} {drafts:>3} {tokens:>7} {off * 1e3:>8.1f} {off / base:>8.2f}"
        print(f"{price} {on * 1e3:>14.1f} {on / off:>15.3f}")


if __name__ == "__main__":
    main()
