"""Schedules that put a draft network through everything: pauses, shared and exchanged pages, preemption, chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from overdrive.policy.controller import Controller, LoadView
from overdrive.request import Request
from overdrive.types import Plan, SamplingParams, Why
from tests.loop.bench import Bench, StopAndGo
from tests.loop.lazy import LazyStream
from tests.loop.test_engine_laws import random_params
from tests.loop.tiny_engine import MAX_MODEL_LEN, VOCAB, tiny_bench
from tests.loop.toy import ByteStops


@dataclass
class Seen:
    """lags: known tokens that the network had not read when drafts were wanted. fed: tokens of each of its passes."""

    lags: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)


class Lever(Controller):
    """A controller whose K the test sets."""

    plans = tuple(range(1, 16))

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts

    def choose(self, view: LoadView) -> Plan:
        return Plan(self.drafts, Why(rule="lever"))


def prompt_stream() -> LazyStream:
    """Runs every launch at once. Unlike the engine's own streams it lets failed assertions through."""
    return LazyStream(random.Random(0), eagerness=1.0)


class OneRow:
    """An engine that answers one greedy request after the other."""

    def __init__(self, make_drafter, drafts: int, **options) -> None:
        self.lever = Lever(drafts)
        self.bench = tiny_bench(prompt_stream(), self.lever, make_drafter, lookahead=0, max_rows=1, **options)

    def ask(self, prompt: Iterable[int], max_tokens: int) -> Request:
        """The answered request."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        number = len(self.bench.answers)
        request = Request(f"r{number}", tuple(prompt), params, number)
        self.bench.scheduler.submit(request)
        self.bench.run()
        return request


def alike_requests(rng: random.Random, count: int) -> list[Request]:
    """Prompts that begin in one of two ways. Some are scored, so that rows compute pages that others share."""
    beginnings = [[rng.randrange(VOCAB) for _ in range(30)] for _ in range(2)]
    requests = []
    for number in range(count):
        prompt = [*rng.choice(beginnings)[: rng.choice([13, 30])], rng.randrange(VOCAB)]
        most = rng.choice([4, 20, MAX_MODEL_LEN - len(prompt)])
        params = random_params(rng, len(prompt))
        params = replace(params, max_tokens=most, prompt_logprobs=rng.choice([-1, -1, 0]))
        requests.append(Request(f"r{number}", tuple(prompt), params, number, ByteStops(params.stop)))
    return requests


def random_schedule(rng: random.Random, make_drafter) -> tuple[Bench, list[Request]]:
    """An engine that has answered a few requests, everything about it random. Ends with the first failed assertion."""
    b = tiny_bench(
        LazyStream(rng),
        StopAndGo(rng, longest=rng.choice([2, 30])),
        make_drafter,
        n_pages=rng.choice([28, 36, 120]),
        page_size=4,
        chunk=rng.choice([5, 16, 64]),
        max_rows=rng.choice([1, 3, 4]),
        lookahead=rng.choice([0, 1, 1]),
        cached=rng.random() < 0.8,
    )
    requests = alike_requests(rng, rng.randint(3, 8))
    for request in requests:
        b.scheduler.submit(request)
        for _ in range(rng.choice([0, 0, 10])):
            b.advance()
    b.run()
    return b, requests
