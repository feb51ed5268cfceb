"""The static shapes that a step is padded to, so that it can run as a CUDA graph. Pure arithmetic, no torch.

A step of `rows` rows with at most K drafts feeds `tokens` tokens and wants logits for `rows * queries` of them, where
queries = K + 1. Buckets are close together where steps are short, since padding costs what real work costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.types import MAX_DRAFTS, Step

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of steps that feed no prompts. Beyond the last one, its multiples."""

MIXED_ROWS = (4, 16, 32, 64, 128, 256)
"""Rows of steps with prompts, coarser: the prompt's tokens are most of the work."""

DRAFTS = (0, 1, 2, 3, 5, 7, MAX_DRAFTS)
"""Drafts per row."""

MIXED_TOKENS = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048)
"""Tokens of steps with prompts. Beyond the last one, its multiples."""


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

    @classmethod
    def of(cls, step: Step) -> StepShape:
        """The shape that a step runs in."""
        # Of the plan, not of the rows: they may be near their ends, but the plan's shape is the one that is recorded.
        drafts = bucket(step.plan.drafts, DRAFTS) if any(row.drafts for row in step.rows) else 0
        if all(row.known + row.drafts <= drafts + 1 for row in step.rows):
            return cls.plain(len(step.rows), drafts)
        rows = bucket(len(step.rows), MIXED_ROWS)
        return cls(bucket(step.tokens, MIXED_TOKENS), rows, drafts + 1, True)

    @classmethod
    def plain(cls, rows: int, drafts: int) -> StepShape:
        """The shape of a step of decode rows."""
        rows = bucket(rows, ROWS)
        return cls(rows * (drafts + 1), rows, drafts + 1, False)


@dataclass(frozen=True, slots=True)
class Extent:
    """The largest shapes that an engine's steps can have; static tensors are as large."""

    tokens: int
    rows: int
    queries: int

    @classmethod
    def of(cls, max_rows: int, max_step_tokens: int, drafts: int) -> Extent:
        """Of an engine whose steps have so many rows and tokens, drafts included, and so many drafts per row."""
        rows = max(bucket(max_rows, ROWS), bucket(max_rows, MIXED_ROWS))
        queries = bucket(drafts, DRAFTS) + 1
        return cls(max(bucket(max_step_tokens, MIXED_TOKENS), rows * queries), rows, queries)


def reachable(max_rows: int, max_step_tokens: int, drafts: Sequence[int]) -> list[StepShape]:
    """Every shape that steps of such an engine can have, largest first.

    drafts: the numbers that plans may hold; 0 is always among them.
    """
    queries = sorted({bucket(k, DRAFTS) + 1 for k in (0, *drafts)})
    rows = [size for size in ROWS if size <= bucket(max_rows, ROWS)]
    mixed_rows = [size for size in MIXED_ROWS if size <= bucket(max_rows, MIXED_ROWS)]
    mixed_tokens = [size for size in MIXED_TOKENS if size <= bucket(max_step_tokens, MIXED_TOKENS)]
    plain = [StepShape.plain(r, q - 1) for r in rows for q in queries]
    mixed = [StepShape(t, r, q, True) for t in mixed_tokens for r in mixed_rows for q in queries if t >= r]
    return sorted({*plain, *mixed}, reverse=True)
