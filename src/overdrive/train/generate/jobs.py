"""What a generator is asked for and what it says back: answers to token prompts, many at a time.

Knows ids and numbers only; must never know a tokenizer, a dataset or what the answers are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One answer to draw. key: the asker's own number for it.

    prompt: at least one id. max_tokens: at least 1. temperature: 0 is greedy, then top_p means nothing.
    """

    key: int
    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0


class Feed(Protocol):
    """Where jobs come from and answers go. A generator calls it from one thread, in any order of answers."""

    def take(self, most: int) -> list[Job]:
        """Up to `most` further jobs; fewer when there are no more for now, which `done` may change."""
        ...

    def done(self, key: int, answer: list[int]) -> None:
        """A job's answer is complete: its ids, the end token included when one was reached."""
        ...


class Generator(Protocol):
    """Draws answers. stops: ids that end one, ascending. max_len: most tokens of a prompt and its answer together."""

    @property
    def stops(self) -> tuple[int, ...]: ...

    @property
    def max_len(self) -> int: ...

    def run(self, feed: Feed) -> None:
        """Until the feed has no more jobs and every answer is given back.

        Raises ValueError for a job that does not fit into max_len.
        """
        ...


def check(job: Job, max_len: int) -> None:
    """Raises ValueError for a job that cannot be run whole."""
    if not job.prompt or job.max_tokens < 1 or len(job.prompt) + job.max_tokens > max_len:
        raise ValueError(f"a prompt of {len(job.prompt)} and {job.max_tokens} more tokens do not fit into {max_len}")
