"""The static shapes that a step is padded to, so that it can run as a CUDA graph. Pure arithmetic, no torch.

A step of `rows` rows with at most K drafts feeds `tokens` tokens and wants logits for `rows * queries` of them, where
queries = K + 1. Up to some hundred tokens a step takes as long as its weights take to be read, and sizes may be far
apart. From there on every padding token costs what a real one costs, and some sizes cost more than larger ones: which
of them are worth a graph is for whoever has timed them to say (`worthwhile`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from overdrive.types import MAX_DRAFTS, Step

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of steps that feed no prompts, where nothing is known of the device. Beyond the last one, its multiples."""

MIXED_ROWS = (4, 16, 64, 128, 256)
"""Rows of steps with prompts, coarser: the prompt's tokens are most of the work."""

DRAFTS = (0, 1, 2, 3, 5, 7, MAX_DRAFTS)
"""Drafts per row."""

MIXED_DRAFTS = (0, 3, 7, MAX_DRAFTS)
"""Drafts per row of steps with prompts."""

MIXED_TOKENS = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048)
"""Tokens of steps with prompts. Beyond the last one, its multiples."""

STEP_ROWS = 2
"""Rows between two sizes that are looked at where padding costs."""

FEW_TOKENS, MANY_TOKENS = 128, 1100
"""Tokens up to which `ROWS` will do, and from which on it will again: where steps are long already, and no plan that
has a choice has so many."""

SPARE = 16
"""A size beyond the most rows may be faster than one that just holds them; not by more than so many rows."""

GAIN = 0.04
"""Share of a step's time that a size must save to be worth a graph."""


def bucket(count: int, sizes: Sequence[int]) -> int:
    """The least size that holds `count`; beyond the last one, the least multiple of it."""
    index = bisect_left(sizes, count)
    return sizes[index] if index < len(sizes) else -(-count // sizes[-1]) * sizes[-1]


@dataclass(frozen=True, slots=True, order=True)
class StepShape:
    """tokens, rows: padded. queries: drafts + 1, padded. mixed: whether rows may feed more than `queries` tokens."""

    tokens: int
    rows: int
    queries: int
    mixed: bool

    @property
    def drafts(self) -> int:
        """K."""
        return self.queries - 1


@dataclass(frozen=True, slots=True)
class Grid:
    """Which shape a step runs in. rows: by queries, ascending sizes of steps without prompts; `ROWS` for others."""

    rows: Mapping[int, Sequence[int]]

    def of(self, step: Step) -> StepShape:
        """The shape that a step runs in."""
        # Of the plan, not of the rows: they may be near their ends, but the plan's shape is the one that is recorded.
        drafts = step.plan.drafts if any(row.drafts for row in step.rows) else 0
        queries = bucket(drafts, DRAFTS) + 1
        if all(row.known + row.drafts <= queries for row in step.rows):
            return self.plain(len(step.rows), drafts)
        rows = bucket(len(step.rows), MIXED_ROWS)
        return StepShape(bucket(step.tokens, MIXED_TOKENS), rows, bucket(drafts, MIXED_DRAFTS) + 1, True)

    def plain(self, rows: int, drafts: int) -> StepShape:
        """The shape of a step of decode rows."""
        queries = bucket(drafts, DRAFTS) + 1
        rows = bucket(rows, self.rows.get(queries, ROWS))
        return StepShape(rows * queries, rows, queries, False)

    def reachable(self, max_rows: int, max_step_tokens: int, drafts: Sequence[int]) -> list[StepShape]:
        """Every shape that steps of such an engine can have, largest first.

        drafts: the numbers that plans may hold; 0 is always among them.
        """
        ks = sorted({0, *drafts})
        plain = {self.plain(rows, k) for k in ks for rows in range(1, max_rows + 1)}
        queries = {bucket(k, MIXED_DRAFTS) + 1 for k in ks}
        rows = [size for size in MIXED_ROWS if size <= bucket(max_rows, MIXED_ROWS)]
        tokens = [size for size in MIXED_TOKENS if size <= bucket(max_step_tokens, MIXED_TOKENS)]
        mixed = {StepShape(t, r, q, True) for t in tokens for r in rows for q in queries if t >= r}
        return sorted(plain | mixed, reverse=True)


USUAL = Grid({})


@dataclass(frozen=True, slots=True)
class Extent:
    """The largest shapes that an engine's steps can have; static tensors are as large."""

    tokens: int
    rows: int
    queries: int

    @classmethod
    def of(cls, max_rows: int, max_step_tokens: int, drafts: int) -> Extent:
        """Of an engine whose steps have so many rows and tokens, drafts included, and so many drafts per row."""
        rows = max(bucket(max_rows, ROWS), max_rows + SPARE, bucket(max_rows, MIXED_ROWS))
        queries = max(bucket(drafts, DRAFTS), bucket(drafts, MIXED_DRAFTS)) + 1
        return cls(max(bucket(max_step_tokens, MIXED_TOKENS), rows * queries), rows, queries)


def candidates(max_rows: int, queries: int) -> list[int]:
    """Row sizes worth timing for rows of so many queries, ascending; smaller and larger ones are as in `ROWS`."""
    most = min(max_rows + SPARE, MANY_TOKENS // queries)
    return [rows for rows in range(STEP_ROWS, most + 1, STEP_ROWS) if rows * queries > FEW_TOKENS]


def refined(max_rows: int, drafts: Iterable[int], seconds: Mapping[int, float]) -> Grid:
    """The sizes to run in, as timing has it. seconds: of steps, or what grows like them, by tokens of `candidates`."""
    rows: dict[int, Sequence[int]] = {}
    for queries in {bucket(k, DRAFTS) + 1 for k in (0, *drafts)}:
        timed = candidates(max_rows, queries)
        few = [size for size in ROWS if size * queries <= FEW_TOKENS]
        kept = worthwhile({size: seconds[size * queries] for size in timed})
        largest = range(ROWS[-1], bucket(max_rows, ROWS) + 1, ROWS[-1])
        many = [size for size in (*ROWS[:-1], *largest) if size > (timed or few)[-1]]
        sizes = (*few, *kept, *many)
        rows[queries] = sizes[: bisect_left(sizes, max_rows) + 1]
    return Grid(rows)


def worthwhile(seconds: Mapping[int, float]) -> list[int]:
    """Of sizes and their seconds, those that save enough over the next larger one kept; the largest always is one."""
    kept: list[int] = []
    least = 0.0
    for size in sorted(seconds, reverse=True):
        if not kept or seconds[size] < (1 - GAIN) * least:
            kept.append(size)
            least = seconds[size]
    return kept[::-1]
