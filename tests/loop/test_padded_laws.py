"""The promises under the CUDA runner, on a CPU in float64: padding, static tensors and rings change no text."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

import pytest

from overdrive.config import EngineOptions
from overdrive.device.base import Parts
from overdrive.device.cuda.device import CudaDevice
from overdrive.device.cuda.shapes import StepShape
from overdrive.device.stream import InlineStream
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import SamplingParams

from .bench import RandomDrafts, StopAndGo
from .lazy import LazyStream
from .padded_engine import CPU, choices, padded_bench
from .test_engine_laws import check, random_bounds, random_requests
from .tiny_engine import Bounds, tiny


@pytest.mark.parametrize("block", range(8))
def test_text_does_not_depend_on_anything_the_engine_decides(block: int) -> None:
    """Random K, drafters, pages, chunks, batch mates, lookahead, caching, preemption, lateness; all sampling rules."""
    for seed in range(block * 8, block * 8 + 8):
        rng = random.Random(seed)
        b = padded_bench(
            LazyStream(rng),
            rng.choice([RandomDrafts, StopAndGo])(rng),
            rng.choice(list(choices().values())),
            **random_bounds(rng),
        )
        requests = random_requests(rng, rng.randint(2, 7))
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        check(b, requests)


@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
@pytest.mark.parametrize("drafter", choices())
def test_text_does_not_depend_on_k(drafts: int, drafter: str) -> None:
    rng = random.Random(5)
    b = padded_bench(InlineStream(), FixedDrafts(drafts), choices()[drafter], lookahead=0)
    requests = random_requests(rng, 8)
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    check(b, requests)


def test_preempted_requests_resume_where_they_were() -> None:
    rng = random.Random(7)
    b = padded_bench(LazyStream(rng), FixedDrafts(3), choices()["ngram+eagle3"], n_pages=26, cached=False)
    params = SamplingParams(max_tokens=40, temperature=0.9, frequency_penalty=0.4, seed=3)
    requests = [Request(f"r{i}", tuple(range(i, i + 12)), params, i) for i in range(5)]
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    assert b.scheduler.preemptions >= 3
    check(b, requests)


def test_drafts_are_accepted_where_the_text_repeats() -> None:
    b = padded_bench(InlineStream(), FixedDrafts(5), choices()["ngram"], lookahead=0)
    request = Request("r", (1, 2, 3), SamplingParams(max_tokens=80, temperature=0.0), 0)
    b.scheduler.submit(request)
    b.run()
    assert request.drafted > 30
    check(b, [request])


@pytest.mark.parametrize(("acceptance", "per_round"), [("1", 4.0), ("0", 1.0)])
def test_imposed_acceptance_is_what_was_asked(acceptance: str, per_round: float) -> None:
    b = padded_bench(InlineStream(), FixedDrafts(3), choices()["eagle3"], acceptance, lookahead=0)
    b.scheduler.submit(Request("r", (1, 2, 3), SamplingParams(max_tokens=80, temperature=0.0), 0))
    b.run()
    assert 79 / (b.committer.rounds - 1) == pytest.approx(per_round, rel=0.02)  # the first is the prompt's


class Running:
    """Graphs that are not recorded: what would be is run once, as it is before it is recorded."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()

    def run(self, key: Hashable, work: Callable[[], object]) -> None:
        work()

    def capture(self, key: Hashable, work: Callable[[], object]) -> None:
        self.keys.add(key)
        work()

    def clear(self) -> None:
        self.keys.clear()


@pytest.mark.parametrize("drafts", [0, 3])
def test_whatever_is_recorded_at_start_can_run(drafts: int) -> None:
    """Over padding rows alone, also where nobody drafts."""
    given, graphs = Bounds(), Running()
    choice = choices()["ngram+eagle3" if drafts else "none"]
    parts = Parts(tiny(), choice, given.limits(), given.n_pages, drafts, (), EngineOptions())
    runner = CudaDevice(CPU).assemble(parts, InlineStream())
    runner._graphs = graphs
    runner.capture(
        [StepShape(4 * (drafts + 1), 4, drafts + 1, False), StepShape(16, 4, drafts + 1, True)], lambda done: None
    )
    assert {str(key[0]) for key in graphs.keys} >= {"forward", "accept", *(["keep", "write over"] if drafts else [])}
