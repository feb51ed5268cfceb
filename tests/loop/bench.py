"""An engine under test: what it answered, how each request ended, and whether everything came back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from overdrive.commit import Committer, Delta
from overdrive.loop import Loop, Runner
from overdrive.policy.controller import Controller, LoadView
from overdrive.scheduler import Scheduler
from overdrive.types import Finish, Plan, Why


class RandomDrafts(Controller):
    """Another K every step: whatever a controller may decide, at its wildest."""

    plans = tuple(range(1, 16))

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, view: LoadView) -> Plan:
        return Plan(self._rng.choice([0, 0, 1, 3, 5, 7]), Why(rule="random"))


class StopAndGo(Controller):
    """Long stretches without drafts, then some steps with, each with a K of its own: drafters must catch up."""

    plans = tuple(range(1, 16))

    def __init__(self, rng: random.Random, longest: int = 24) -> None:
        self._rng = rng
        self._longest = longest
        self._going = True
        self._left = 0

    def choose(self, view: LoadView) -> Plan:
        if not self._left:
            self._going = not self._going
            self._left = self._rng.randint(1, 6 if self._going else self._longest)
        self._left -= 1
        return Plan(self._rng.choice([1, 2, 3, 7]) if self._going else 0, Why(rule="stop and go"))


@dataclass
class Bench:
    """A whole engine, whatever its model."""

    scheduler: Scheduler
    runner: Runner
    committer: Committer
    loop: Loop
    answers: dict[str, list[int]] = field(default_factory=dict)
    finishes: dict[str, list[Finish]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    prompt_scores: dict[str, list[float]] = field(default_factory=dict)

    def advance(self) -> None:
        for delta in self.loop.advance():
            self.take(delta)

    def take(self, delta: Delta) -> None:
        self.answers.setdefault(delta.request.id, []).extend(delta.tokens)
        if delta.logprobs is not None:
            self.scores.setdefault(delta.request.id, []).extend(delta.logprobs.chosen.tolist())
        if delta.prompt_logprobs is not None:
            self.prompt_scores.setdefault(delta.request.id, []).extend(delta.prompt_logprobs.chosen.tolist())
        if delta.finish is not None:
            self.finishes.setdefault(delta.request.id, []).append(delta.finish)

    def run(self, most: int = 4000) -> None:
        for _ in range(most):
            if self.loop.idle:
                return
            self.advance()
        raise AssertionError("the engine makes no progress")

    def check_conserved(self) -> None:
        self.scheduler.pool.check(p for r in self.scheduler.running.values() for p in r.pages)
        assert len(self.scheduler._slots) + len(self.scheduler.running) == self.scheduler.limits.max_rows
        assert not self.scheduler._flying
