"""Real steps of requests that nobody made, timed before the first real one comes.

It knows a runner's four launches and nothing of what is behind them. It uses slots and pages while nobody else does,
and takes none: no pool, queue or cache is told, and what it leaves in a slot or page is what ended requests leave.

    pages   1 .. | of text 0 | of text 1 | ... | row 0's own | row 1's own | ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from overdrive.limits import Limits
from overdrive.loop import Flight, Runner
from overdrive.types import Admission, Outcome, PageEntry, Plan, Row, SamplingParams, Step, Why

CYCLE = 8
"""Tokens after which a made-up text repeats itself, so that drafters which copy have something to copy."""

WHY = Why(rule="rehearsal")

New = tuple[tuple[Admission, ...], tuple[PageEntry, ...]]
"""What a step brings its slots."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One step: the tokens it fed, the positions its rows attended to, seconds of drafting and of everything else."""

    tokens: int
    context: int
    draft: float
    rest: float


class Rehearsal:
    """A runner, and how much it may be asked for."""

    def __init__(
        self, runner: Runner[Any], limits: Limits, n_pages: int, vocab: int, lookahead: int, padded: bool
    ) -> None:
        """n_pages: the scratch page included. lookahead: as in `Loop`. padded: steps feed all drafts that the plan
        asks for, whatever was offered."""
        self._runner = runner
        self._limits = limits
        self._n_pages = n_pages
        self._vocab = vocab
        self._lookahead = lookahead
        self._padded = padded

    def fits(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> bool:
        """Whether there is room for that many steps of such rows, behind `texts` texts of `context` positions."""
        limits = self._limits
        pages = 1 + texts * (context // limits.page_size) + rows * self._own_pages(drafts, steps)
        longest = context + 1 + steps * (drafts + 1)
        fed = rows * (drafts + 1)
        within = rows <= limits.max_rows and fed <= limits.max_step_tokens and longest <= limits.max_model_len
        return within and pages <= self._n_pages

    def read(self, context: int, texts: int) -> None:
        """Have texts of so many positions, whole pages, stand in the first pages; each is read by another slot."""
        size, chunk = self._limits.page_size, min(self._limits.chunk, self._limits.max_step_tokens)
        for text in range(texts):
            slot = text % self._limits.max_rows
            entry = PageEntry(slot, 0, self._text_pages(text, context // size))
            new: New = (self._admission(slot, context, 0),), (entry,)
            for fed in range(0, context, chunk):
                known = min(chunk, context - fed)
                row = Row("", slot, known, 0, fed + known == context, fed + known)
                self._launch(Step(0, (row,), Plan(0, WHY), *new)).wait()
                new = (), ()

    def decode(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> list[Timed]:
        """Steps of rows that share the texts which `read` has read, one after the other."""
        return list(self._settled(self._steps(rows, drafts, steps, context, texts), rows, context))

    def _steps(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> Iterator[Step]:
        shared, own = context // self._limits.page_size, self._own_pages(drafts, steps)
        entries = []
        for slot in range(rows):
            first = 1 + texts * shared + slot * own
            entries.append(PageEntry(slot, 0, self._text_pages(slot % texts, shared), shared=True))
            entries.append(PageEntry(slot, shared, tuple(range(first, first + own))))
        admissions = tuple(self._admission(slot, context + 1, context) for slot in range(rows))
        new: New = admissions, tuple(entries)
        for number in range(steps):
            # As if everything were accepted: a bound is all that this is, and pages last that long.
            upper_len = context + 1 + number * (drafts + 1) + drafts
            same = tuple(Row("", slot, 1, drafts, True, upper_len) for slot in range(rows))
            yield Step(0, same, Plan(drafts, WHY), *new)
            new = (), ()

    def _settled(self, steps: Iterator[Step], rows: int, context: int) -> Iterator[Timed]:
        """Launch the steps as a loop would, and time them as they settle."""
        pending: deque[Flight] = deque()
        lengths, mark = rows * (context + 1), time.perf_counter()
        for step in (*steps, None):
            if step is not None:
                pending.append(self._launch(step))
            while len(pending) > (self._lookahead if step else 0):
                flight = pending.popleft()
                outcome, now = flight.wait(), time.perf_counter()
                yield self._timed(flight.step, outcome, lengths, now - mark)
                lengths, mark = lengths + int(outcome.counts.sum()), now

    def _timed(self, step: Step, outcome: Outcome, context: int, elapsed: float) -> Timed:
        """By the device's clock, or by the host's where that has none."""
        draft, *rest = outcome.seconds
        fed = step.tokens if self._padded else len(step.rows) + int(outcome.offered.sum())
        return Timed(fed, context, draft, sum(rest) or elapsed)

    def _launch(self, step: Step) -> Flight:
        flight: Flight = self._runner.draft(step)
        self._runner.forward(flight)
        self._runner.accept(flight)
        self._runner.absorb(flight)
        return flight

    def _admission(self, slot: int, length: int, computed: int) -> Admission:
        tokens = ((1 + np.arange(length) % CYCLE * 7919) % self._vocab).tolist()
        params = SamplingParams(max_tokens=self._limits.max_model_len, temperature=0.0)
        return Admission("", slot, tuple(tokens), length, computed, params)

    def _text_pages(self, text: int, count: int) -> tuple[int, ...]:
        return tuple(range(1 + text * count, 1 + (text + 1) * count))

    def _own_pages(self, drafts: int, steps: int) -> int:
        return -(-(1 + (steps + 1) * (drafts + 1)) // self._limits.page_size)
