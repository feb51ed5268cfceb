"""A request as the engine holds it: what was asked, what was committed, and, while it runs, what it occupies.

Only `commit` writes the output. Nothing here knows a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from overdrive.grammar.constraint import FREE, Constraint
from overdrive.text.stops import StopHit
from overdrive.types import Finish, PageEntry, SamplingParams


class StopWatch(Protocol):
    """Watches committed tokens for stop strings, on bytes."""

    def push(self, token: int) -> StopHit | None:
        """Take the next committed token; the stop string it completes, or None."""
        ...


class NoStops:
    """A request without stop strings."""

    def push(self, token: int) -> StopHit | None:
        return None


@dataclass(slots=True, eq=False)
class Request:
    """One answer to be generated. `arrival` orders requests; a preempted one keeps its place.

    tokens: prompt and committed output. cached_tokens: prompt tokens found in the prefix cache when it first ran.
    drafted: output tokens that came from accepted drafts. offered: drafts verified for it.
    scored: prompt positions whose log-probabilities were given out.
    constraint: what the output must be, moved on by what is committed. held: it is not known yet; not to be admitted.
    allowance: prompt tokens of newer requests that may still be served before it.
    deadline: when it must have ended, by the engine's clock. patience: the seconds that its client gave it.
    submitted, admitted: when it came and when it first had a row in a launched step, by the engine's clock.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: int
    stops: StopWatch = field(default_factory=NoStops)
    tokens: list[int] = field(init=False)
    allowance: int = field(init=False)
    finish: Finish | None = None
    cached_tokens: int = -1
    drafted: int = 0
    offered: int = 0
    scored: int = 0
    constraint: Constraint = FREE
    held: bool = False
    deadline: float = inf
    patience: float = inf
    submitted: float = 0.0
    admitted: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.allowance = len(self.prompt)

    @property
    def started(self) -> bool:
        """Whether it runs, or did."""
        return self.cached_tokens >= 0

    @property
    def queued(self) -> float:
        """Seconds that it waited for a row; 0 while it does."""
        return self.admitted - self.submitted if self.admitted else 0.0

    @property
    def output(self) -> Sequence[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def output_len(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def most_len(self) -> int:
        """Most tokens the request can ever hold."""
        return len(self.prompt) + self.params.max_tokens


@dataclass(slots=True, eq=False)
class Running:
    """A request that holds a slot.

        0          fed        target        committed_len            upper_len
        |----------|-----------|--------------|------------------------|
         launched    still to    (fed == target from here on: every
         prefill     feed         step feeds the newest token and drafts)

    target: tokens known at admission; feeding them is the prefill.
    fed: known tokens that launched steps have fed. stored: those of settled steps: their KV is real.
    in_flight: most tokens launched steps may still add. emitting: launched steps that will add at least one.
    launched: launched steps that hold a row of this request.
    read: tokens that the drafter has read once all launched steps have run: prompts, and what stood when the row last
    drafted. donated: leading pages named by the prefix cache. unsent: page-table changes the device does not know yet.
    leaving: chosen for preemption; not scheduled again before it has left.
    """

    request: Request
    slot: int
    pages: list[int]
    target: int
    fed: int
    stored: int
    donated: int
    unsent: list[PageEntry] = field(default_factory=list)
    in_flight: int = 0
    emitting: int = 0
    launched: int = 0
    leaving: bool = False
    read: int = field(init=False)

    def __post_init__(self) -> None:
        self.read = self.target

    @property
    def unread(self) -> int:
        """Most tokens that the drafter lacks."""
        return self.upper_len - self.read

    @property
    def upper_len(self) -> int:
        """Most tokens the device may hold for this request."""
        return len(self.request.tokens) + self.in_flight

    @property
    def prefilling(self) -> bool:
        return self.fed < self.target

    @property
    def tokens_left(self) -> int:
        """Tokens still wanted if every launched step yields only one."""
        return self.request.most_len - len(self.request.tokens) - self.emitting

    def exchange(self, index: int) -> None:
        """Page `index` was exchanged for an equal one; later steps must read that."""
        self.unsent.append(PageEntry(self.slot, index, (self.pages[index],), shared=True))
