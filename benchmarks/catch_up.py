"""What a pause in drafting costs an EAGLE-3 head: nothing within its window, beyond it the text that it lost.

Run: PYTHONPATH=src python benchmarks/catch_up.py --prompts FILE... [--count 200] [--rows 32] [--after 64]
     [--temperature 0] [--out recovery.jsonl]

FILEs hold JSON lines with `turns`, `prompt` or `question`; prompts are taken from them in turn, and every answer goes
on past its end (`ignore_eos`), so that all are long enough. Rows are answered many at once; a step drafts for all of
them or for none.

1. Within the window (256 positions): 200 steps without drafts, then K = 3. Drafts for a text that both runs drafted for
   are compared with those of a run that never stopped. Where they differ, the gap between the head's two best logits
   says whether it was a near-tie (1e-3).
2. Beyond it: was the first draft right, by rounds since drafting went on, beside the rounds from the same place of the
   same text on of a run that never stopped. K = 1: first drafts are all that is counted. `--out` writes JSON lines for
   scripts/draw_catch_up.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from drafting import texts
from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.device.sampling import Layout
from overdrive.draft.base import Drafts
from overdrive.draft.drawing import DraftSampler
from overdrive.draft.eagle3.drafter import EagleDrafter
from overdrive.engine import Engine, build
from overdrive.policy.controller import Controller, LoadView
from overdrive.request import Request
from overdrive.text import open_text
from overdrive.types import Finish, FinishReason, Plan, SamplingParams, Why

WINDOW = 256
BEFORE = 16
"""Steps with drafts before the pause."""
CASES = ((WINDOW, 300), (WINDOW, 500), (32, 64))
"""(window, steps without drafts)."""
BINS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128))
"""Rounds since drafting went on, first and last."""
NEAR = 1e-3
MOST_PROMPT = 512

Ids = list[int]


class Pauses(Controller):
    """`drafts` for every row, but for `pause` steps after the first `before` in which no prompt was left to read."""

    plans = tuple(range(1, 16))

    def __init__(self) -> None:
        self.restart(0, 0, 0)

    def restart(self, drafts: int, before: int, pause: int) -> None:
        self.drafts, self.before, self.end = drafts, before, before + pause
        self.steps = 0

    def choose(self, view: LoadView) -> Plan:
        self.steps += not view.prefill_tokens
        paused = self.before < self.steps <= self.end
        return Plan(0 if paused else self.drafts, Why(rule="pauses"))


@dataclass
class Row:
    """One answer. rounds: (step, answer tokens before it, whether its first draft was right) of those with drafts."""

    request: Request
    rounds: list[tuple[int, int, bool]] = field(default_factory=list)

    def since_step(self, step: int, most: int) -> list[tuple[int, bool]]:
        """(answer tokens before it, first draft right) of the first `most` rounds behind a step."""
        return [(length, right) for at, length, right in self.rounds if at > step][:most]

    def since_length(self, length: int, most: int) -> list[bool]:
        """Whether the first draft was right in the first `most` rounds from a text length on."""
        return [right for _, at, right in self.rounds if at >= length][:most]


class Bench:
    """An engine with its controller, answering wave after wave."""

    def __init__(self, window: int, rows: int) -> None:
        options = EngineOptions(
            model=ModelOptions(max_model_len=2048),
            memory=MemoryOptions(kv_tokens=rows * 1536, prefix_cache=False),
            # A window is never smaller than a chunk and one.
            scheduler=SchedulerOptions(max_rows=rows, chunk=min(WINDOW, window) - 1),
            draft=DraftOptions(draft="eagle3", drafts=3, draft_window=window),
        )
        self.pauses = Pauses()
        self.engine = build("smollm2", options, lambda *_: None, self.pauses)
        self._names = itertools.count()

    def wave(self, prompts: Sequence[Ids], lengths: Sequence[int], temperature: float, steps: int) -> list[Row]:
        """Answer all prompts together with so many tokens each, for at most so many steps."""
        rows = {}
        for number, (ids, length) in enumerate(zip(prompts, lengths, strict=True)):
            params = SamplingParams(max_tokens=length, temperature=temperature, seed=number)
            name = f"r{next(self._names)}"
            rows[name] = Row(self.engine.submit(name, ids, params))
        while not self.engine.idle and self.pauses.steps < steps:
            for delta in self.engine.advance():
                if delta.offered:
                    before = delta.request.output_len - len(delta.tokens)
                    rows[delta.request.id].rounds.append((self.pauses.steps, before, delta.accepted > 0))
        self.engine.abort_all(Finish(FinishReason.ABORT))
        while not self.engine.idle:
            self.engine.advance()
        return list(rows.values())


# -- within the window -----------------------------------------------------------------------------------------------


class Gaps:
    """Draws as its sampler does, and keeps the gap between the two best logits of every draw."""

    def __init__(self, sampler: DraftSampler) -> None:
        self._sampler = sampler
        self.of: dict[tuple[int, int], float] = {}

    def draw(self, logits: Tensor, layout: Layout, drafts: Tensor) -> Tensor:
        best = logits.topk(2, dim=1).values
        for row, depth, (first, second) in zip(
            layout.rows.tolist(), layout.depths.tolist(), best.tolist(), strict=True
        ):
            self.of[row, depth] = first - second
        return self._sampler.draw(logits, layout, drafts)


class Notes:
    """A head's drafter that notes what it drafts for which text, and by how much it lagged."""

    def __init__(self, engine: Engine) -> None:
        """Takes the place of the engine's drafter: nobody else may look inside an engine, a benchmark has to."""
        runner = engine._loop._runner
        self._drafter: EagleDrafter = runner._drafter
        self._state = runner._state
        self._gaps = self._drafter._sampler = Gaps(self._drafter._sampler)
        runner._drafter = self
        self.restart()

    def restart(self) -> None:
        self.drafts: dict[bytes, list[tuple[int, float]]] = {}
        self.lags: dict[bytes, int] = {}

    def __getattr__(self, name: str):
        return getattr(self._drafter, name)

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        keys = [self._state.history[slot, : self._state.lengths[slot]].numpy().tobytes() for slot in slots]
        self.lags |= {key: self._drafter.lag(slot) for key, slot in zip(keys, slots.tolist(), strict=True)}
        drafts = self._drafter.propose(slots, caps, width)
        for row, (key, cap) in enumerate(zip(keys, caps.tolist(), strict=True)):
            tokens = drafts.tokens[row, :cap].tolist()
            self.drafts[key] = [(token, self._gaps.of[row, depth]) for depth, token in enumerate(tokens)]
        return drafts


def within(bench: Bench, prompts: Sequence[Ids], pause: int, after: int) -> str:
    """Compare greedy drafts of a run that paused with those of one that did not, wherever both drafted for one text."""
    notes = Notes(bench.engine)
    length = 4 * BEFORE + pause + 4 * after
    found: Counter[str] = Counter()
    for begin in range(0, len(prompts), bench.engine.info.max_rows):
        part = prompts[begin : begin + bench.engine.info.max_rows]
        notes.restart()
        bench.pauses.restart(3, 0, 0)
        bench.wave(part, [length] * len(part), 0.0, length)
        never = notes.drafts
        notes.restart()
        bench.pauses.restart(3, BEFORE, pause)
        bench.wave(part, [length] * len(part), 0.0, BEFORE + pause + after)
        for key in notes.drafts.keys() & never.keys():
            if notes.lags[key] >= pause:
                found["first"] += 1
            if len(key) // 4 - min(map(len, part)) > BEFORE + pause:
                found["texts"] += 1
                found.update(_compare(notes.drafts[key], never[key]))
    return (
        f"{len(prompts)} prompts, {pause} steps without drafts: {found['texts']} texts that both runs drafted for "
        f"({found['first']} of them right at the end of the pause), {found['equal']} drafts equal, "
        f"{found['near']} near-ties, {found['other']} other"
    )


def _compare(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> Iterator[str]:
    """What each draft is: those behind a different one are of another text."""
    for (token, gap), (meant, _) in zip(one, other, strict=False):
        if token != meant:
            yield "near" if gap < NEAR else "other"
            return
        yield "equal"


# -- beyond the window -----------------------------------------------------------------------------------------------


@dataclass
class Recovery:
    """First drafts by rounds since the pause: right ones, of all, for the run that paused and for the other."""

    window: int
    pause: int
    paused: Counter[tuple[int, bool]] = field(default_factory=Counter)
    never: Counter[tuple[int, bool]] = field(default_factory=Counter)

    @staticmethod
    def rate(counts: Counter[tuple[int, bool]], bin_: tuple[int, int]) -> float:
        """Share of right first drafts."""
        right, wrong = (sum(counts[at, is_] for at in range(bin_[0], bin_[1] + 1)) for is_ in (True, False))
        return right / max(1, right + wrong)


def beyond(prompts: Sequence[Ids], options: argparse.Namespace) -> list[Recovery]:
    """All cases over all prompts, wave by wave; the run that never stops goes as far as the others got."""
    benches = {window: Bench(window, options.rows) for window, _ in CASES}
    recoveries = [Recovery(window, pause) for window, pause in CASES]
    differ = 0
    for begin in track(range(0, len(prompts), options.rows), "waves"):
        part = prompts[begin : begin + options.rows]
        arms = []
        for window, pause in CASES:
            steps = BEFORE + pause + options.after
            benches[window].pauses.restart(1, BEFORE, pause)
            arms.append(benches[window].wave(part, [2 * steps] * len(part), options.temperature, steps))
        reach = [max(row.request.output_len for row in rows) + 2 for rows in zip(*arms, strict=True)]
        benches[WINDOW].pauses.restart(1, 0, 0)
        never = benches[WINDOW].wave(part, reach, options.temperature, max(reach))
        for (_, pause), rows, recovery in zip(CASES, arms, recoveries, strict=True):
            for row, whole in zip(rows, never, strict=True):
                said = list(row.request.output)
                differ += said != list(whole.request.output)[: len(said)]
                _count(recovery, row, whole, BEFORE + pause, options.after)
    if differ:
        print(f"{differ} texts differ from those of the run that never stopped")
    for bench in benches.values():
        bench.engine.close()
    return recoveries


def _count(recovery: Recovery, row: Row, never: Row, step: int, most: int) -> None:
    """Add one answer's rounds behind a step, and the other run's from the same text length on."""
    resumed = row.since_step(step, most)
    recovery.paused.update((at, right) for at, (_, right) in enumerate(resumed, start=1))
    others = never.since_length(resumed[0][0], len(resumed))
    recovery.never.update((at, right) for at, right in enumerate(others, start=1))


def show(recoveries: Sequence[Recovery], prompts: int, after: int) -> None:
    """A table of never stopped / paused, by rounds."""
    table = Table(title=f"first draft right, never stopped / after the pause, {prompts} prompts")
    table.add_column("rounds since")
    for recovery in recoveries:
        table.add_column(f"window {recovery.window}, pause {recovery.pause}", justify="right")
    for bin_ in bins(after):
        cells = (f"{r.rate(r.never, bin_):.3f} / {r.rate(r.paused, bin_):.3f}" for r in recoveries)
        table.add_row("-".join(map(str, dict.fromkeys(bin_))), *cells)
    Console(width=110).print(table)


def bins(after: int) -> list[tuple[int, int]]:
    return [(first, min(last, after)) for first, last in BINS if first <= after]


def write(recoveries: Sequence[Recovery], after: int, out: Path) -> None:
    """One JSON line for each case."""
    with out.open("w", encoding="utf-8") as file:
        for recovery in recoveries:
            line = {
                "window": recovery.window,
                "pause": recovery.pause,
                "rounds": [(first + last) / 2 for first, last in bins(after)],
                "never": [recovery.rate(recovery.never, bin_) for bin_ in bins(after)],
                "paused": [recovery.rate(recovery.paused, bin_) for bin_ in bins(after)],
            }
            file.write(json.dumps(line) + "\n")


def encoded(source: Path, options: argparse.Namespace) -> list[Ids]:
    """`count` prompts as the model reads them, from the files in turn, none of more than MOST_PROMPT tokens."""
    tokenizer, template = open_text(source, ModelOptions())
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*map(texts, options.prompts)))
    rendered = (template.render([{"role": "user", "content": text}]) for text in in_turn if text)
    ids = (tokenizer.encode(text, add_special=False) for text in rendered)
    return list(itertools.islice((each for each in ids if len(each) <= MOST_PROMPT), options.count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--after", type=int, default=64, help="rounds to look at after a pause, at most 128")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(WINDOW, options.rows)
    prompts = encoded(Path(bench.engine.info.source), options)
    print(within(bench, prompts[: options.rows], 200, 16), flush=True)
    bench.engine.close()
    recoveries = beyond(prompts, options)
    show(recoveries, len(prompts), options.after)
    if options.out:
        write(recoveries, options.after, options.out)


if __name__ == "__main__":
    main()
