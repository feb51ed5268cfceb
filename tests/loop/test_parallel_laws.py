"""The promises with a model divided among ranks: the text is that of one rank alone, whatever the engine does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from overdrive.device.cuda.graphs import NoGraphs
from overdrive.device.cuda.shapes import USUAL
from overdrive.device.stream import InlineStream
from overdrive.draft import NoDrafts
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import Finish, FinishReason, SamplingParams
from tests.together import together

from .bench import Bench, RandomDrafts, StopAndGo
from .crew import Crew, divided_bench, padded_divided_bench, padded_runner
from .lazy import LazyStream
from .padded_engine import choices, padded_bench
from .test_engine_laws import check, random_bounds, random_requests, wild
from .tiny_drafters import DRAFTERS
from .tiny_engine import Bounds


def run_at_random(rng: random.Random, make: Callable[..., Bench], drafters: list[Any]) -> None:
    """Random K, drafters, pages, chunks, batch mates, lookahead, caching, preemption; all sampling rules."""
    with Crew(2) as crew:
        bench = make(
            crew,
            LazyStream(rng),
            rng.choice([RandomDrafts, StopAndGo])(rng),
            rng.choice(drafters),
            **random_bounds(rng),
        )
        requests = random_requests(rng, rng.randint(2, 7))
        for request in requests:
            bench.scheduler.submit(request)
        bench.run()
        check(bench, requests)
        assert crew.meeting.held > 4 * bench.loop.times.steps


@pytest.mark.parametrize("block", range(2))
def test_text_does_not_depend_on_ranks(block: int) -> None:
    for seed in range(block * 3, block * 3 + 3):
        rng = random.Random(seed)
        run_at_random(rng, divided_bench, [*DRAFTERS.values(), wild(rng)])


@pytest.mark.parametrize("block", range(2))
def test_text_does_not_depend_on_ranks_under_the_cuda_runner(block: int) -> None:
    for seed in range(block * 3, block * 3 + 3):
        run_at_random(random.Random(seed), padded_divided_bench, list(choices().values()))


def test_an_answer_that_is_given_up_leaves_the_ranks_in_step() -> None:
    with Crew(2) as crew:
        bench = divided_bench(crew, InlineStream(), FixedDrafts(3), DRAFTERS["ngram"], max_rows=2, n_pages=40)
        requests = [Request(f"r{i}", (i, 2, 3), SamplingParams(max_tokens=20, seed=i), i) for i in range(5)]
        for request in requests:
            bench.scheduler.submit(request)
        for _ in range(3):
            bench.advance()
        bench.take(bench.committer.abort(requests[0], Finish(FinishReason.ABORT)))
        bench.run()
        check(bench, requests[1:])


def test_imposed_acceptance_is_the_same_on_every_rank() -> None:
    """It decides by seed and position, so a divided engine takes the steps of one that is not."""
    found = []
    for divided in (False, True):
        with Crew(2) as crew:
            given = InlineStream(), FixedDrafts(3), choices()["ngram"], "0.7,0.5,0.3"
            bench = padded_divided_bench(crew, *given) if divided else padded_bench(*given)
            for i in range(3):
                params = SamplingParams(max_tokens=24, seed=(1 << 70) + i)
                bench.scheduler.submit(Request(f"r{i}", (i, 2, 3, 2, 3), params, i))
            bench.run()
            found.append((bench.answers, bench.loop.times.steps))
    assert found[0] == found[1]


def test_what_is_recorded_at_start_keeps_ranks_in_step() -> None:
    """Recording runs every piece once. A leader's drafter has more of them than a follower's, which has none."""

    class Once(NoGraphs):
        def __init__(self) -> None:
            self.keys: set[Any] = set()

        def capture(self, key: Any, work: Callable[[], object]) -> None:
            if key not in self.keys:
                self.keys.add(key)
                work()

    def record(ranks: Any) -> int:
        given, graphs = Bounds(max_rows=2, max_step_tokens=16), Once()
        runner = padded_runner(ranks, InlineStream(), NoDrafts() if ranks.rank else choices()["eagle3"], given)
        runner._graphs = graphs
        runner.capture(USUAL.reachable(2, 16, (3,)), lambda done: None)
        return len(graphs.keys)

    led, followed = together(2, record)
    assert led > followed > 10
