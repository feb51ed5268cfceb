"""The host's work for the masks of a step, by rows, drafts and threads: microseconds for each constrained row.

Run: PYTHONPATH=src python benchmarks/masks.py [--rows 16 64 250] [--drafts 0 3] [--threads 1 4] [--steps 20]
         [--cold]

Rows stand at random places of answers: JSON of short values, then one that is mostly a long string. walker: what the
engine does, with the runs of what certainly follows (`ahead`) and without. library: llguidance's own threads, which
fill all masks of all rows in one call; it has neither those runs nor a limit for a row. Wall time is told, and behind
it the processor's, which other work on the machine disturbs less. --cold: 64 MiB are written before every step, as a
forward pass on a CPU reads the weights: nothing is in the caches then.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product

import llguidance
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from overdrive.compiling import vocabulary_of
from overdrive.config import ModelOptions
from overdrive.grammar.base import Vocabulary, mask_words
from overdrive.grammar.constraint import Constrained
from overdrive.grammar.guidance import GuidanceCompiler, GuidanceProgram
from overdrive.grammar.sheet import blank_sheet
from overdrive.grammar.walker import Walker
from overdrive.model.weights import load
from overdrive.text.loading import open_text

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "home": CITY},
    "required": ["name", "age", "home"],
}
SHORT = [{"name": "John Smith", "age": 45, "home": {"city": "New York", "zip": "10023"}}] * 12
LONG = [{"name": "The old man walked to the river and watched the boats go by until it was dark. " * 12, "age": 7}]

EVICTED = 64 << 20

Times = tuple[float, float]
"""Microseconds of a row: by the wall's clock, by the processor's."""


class Rows:
    """Constraints at random places of an answer. tokens: of the answer. K: drafts, which are those that follow."""

    def __init__(
        self, program: GuidanceProgram, tokens: Sequence[int], rows: int, drafts: int, steps: int, cold: bool
    ) -> None:
        rng = random.Random(0)
        self.drafts, self.tokens = drafts, tokens
        self.evict = np.zeros(EVICTED if cold else 0, np.uint8)
        self.places = [rng.randrange(len(tokens) - drafts - steps) for _ in range(rows)]
        self.constraints = [Constrained(program, ()) for _ in self.places]
        for constraint, place in zip(self.constraints, self.places, strict=True):
            for token in tokens[:place]:
                constraint.accept(token)

    @property
    def chains(self) -> list[tuple[int, Constrained, Sequence[int]]]:
        ends = ((place, place + self.drafts) for place in self.places)
        drafts = (self.tokens[first:last] for first, last in ends)
        return [(row, *one) for row, one in enumerate(zip(self.constraints, drafts, strict=True))]

    def go_on(self) -> None:
        for row, constraint in enumerate(self.constraints):
            constraint.accept(self.tokens[self.places[row]])
            self.places[row] += 1


def timed(rows: Rows, steps: int, work: Callable[[], None]) -> Times:
    """Medians of the steps."""
    wall, processor = [], []
    for _ in range(steps):
        rows.evict += 1
        before = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - before[0])
        processor.append(time.process_time() - before[1])
        rows.go_on()
    return tuple(1e6 * statistics.median(times) / len(rows.places) for times in (wall, processor))


def walked(rows: Rows, steps: int, words: int, threads: int, ahead: bool) -> Times:
    walker, count = Walker(threads, ahead), len(rows.places)
    sheet = blank_sheet(count, count, rows.drafts + 1, words, (3, 4))
    found = timed(rows, steps, lambda: walker.fill(rows.chains, sheet))
    walker.close()
    return found


def filled(rows: Rows, steps: int, words: int, threads: int) -> Times:
    """By the library's threads. Their processor time is the process's too."""
    executor, count, queries = llguidance.LLExecutor(threads), len(rows.places), rows.drafts + 1
    bits = blank_sheet(count, count, queries, words, (0, 0)).bits
    address = ctypes.addressof(ctypes.c_char.from_buffer(bits.data))

    def fill() -> None:
        chains = [(c._matcher._matcher, row * queries, list(drafts)) for row, c, drafts in rows.chains]
        if rows.drafts:
            executor.unsafe_compute_mask_ptr_with_draft_token(chains, address, 4 * words, len(bits))
        else:
            executor.unsafe_compute_mask_ptr([chain[:2] for chain in chains], address, 4 * words, len(bits))

    return timed(rows, steps, fill)


def vocabulary(model: str) -> Vocabulary:
    loaded = load(model, ModelOptions(), torch.device("cpu"), lambda *_: None)
    tokenizer, _ = open_text(loaded.source, ModelOptions())
    return vocabulary_of(tokenizer, loaded.config.vocab, tokenizer.eos_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 250])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    known = vocabulary(args.model)
    program = GuidanceCompiler(known)("json_schema", json.dumps({"type": "array", "items": PERSON}))
    table = Table(title="us a row, wall (processor)")
    for name in ("text", "K", "rows", "threads", "walker", "walker, ahead", "library"):
        table.add_column(name)
    texts = {name: known.encode(json.dumps(value)) for name, value in (("short values", SHORT), ("a string", LONG))}
    for (name, tokens), drafts, count, threads in product(texts.items(), args.drafts, args.rows, args.threads):
        given, width = (program, tokens, count, drafts, args.steps, args.cold), mask_words(known.size)
        found = [walked(Rows(*given), args.steps, width, threads, ahead) for ahead in (False, True)]
        found.append(filled(Rows(*given), args.steps, width, threads))
        shown = (f"{wall:.0f} ({processor:.0f})" for wall, processor in found)
        table.add_row(name, str(drafts), str(count), str(threads), *shown)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
