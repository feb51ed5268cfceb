"""What fairness comes to in an engine: steps until the first token, beside prompts of any length."""

from __future__ import annotations

import random

import pytest

from overdrive.device.stream import InlineStream
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import SamplingParams

from .bench import Bench
from .test_loop_laws import bench
from .toy import VOCAB

LONG, SHORT, STEP = 60, 3, 12


def one(name: str, size: int, arrival: int, max_tokens: int = 1) -> Request:
    prompt = random.Random(arrival).choices(range(1, VOCAB), k=size)
    return Request(name, tuple(prompt), SamplingParams(max_tokens=max_tokens), arrival)


def engine(max_rows: int, n_pages: int = 200) -> Bench:
    controller, stream = FixedDrafts(0), InlineStream()
    bounds = {"max_rows": max_rows, "max_step_tokens": STEP, "chunk": STEP, "n_pages": n_pages, "lookahead": 0}
    return bench(random.Random(1), controller=controller, stream=stream, **bounds)


def steps_until(b: Bench, request: Request, feed=lambda: None) -> int:
    for steps in range(1, 500):
        feed()
        b.advance()
        if request.finish is not None:
            return steps
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize("others", [1, 3, 5])
def test_a_short_prompt_beside_long_ones_takes_one_step_more_at_most(others: int) -> None:
    b = engine(max_rows=6)
    for i in range(others):
        b.scheduler.submit(one(f"long{i}", LONG, i))
    b.advance()
    short = one("short", SHORT, 50)
    b.scheduler.submit(short)
    assert steps_until(b, short) <= 2
    b.run()


def test_short_prompts_without_end_halve_the_speed_of_a_long_one_at_most() -> None:
    b = engine(max_rows=6)
    long = one("long", LONG, 0)
    b.scheduler.submit(long)
    b.advance()
    arrivals = iter(range(1, 10_000))

    def feed() -> None:
        while len(b.scheduler.waiting) + len(b.scheduler.running) < 30:
            number = next(arrivals)
            b.scheduler.submit(one(f"s{number}", SHORT, number))

    assert steps_until(b, long, feed) <= 2 * LONG / STEP + 1


@pytest.mark.parametrize("n_pages", [200, 20])
def test_a_long_prompt_that_must_wait_is_passed_by_its_own_length_and_no_more(n_pages: int) -> None:
    """A single row, or hardly more pages than the long one needs; short ones keep coming."""
    b = engine(max_rows=1 if n_pages == 200 else 6, n_pages=n_pages)
    for i in range(8):
        b.scheduler.submit(one(f"first{i}", SHORT, i, max_tokens=9))
    long = one("long", LONG, 10)
    b.scheduler.submit(long)
    newer: list[Request] = []

    def feed() -> None:
        if len(b.scheduler.waiting) < 40:
            newer.append(one(f"s{len(newer)}", SHORT, 11 + len(newer), max_tokens=4))
            b.scheduler.submit(newer[-1])

    before = 0
    for _ in range(500):
        feed()
        b.advance()
        if long.started:
            break
        before = sum(len(other.prompt) for other in newer if other.started)
    assert long.started, "it waits for ever"
    assert 0 < before <= LONG
    steps_until(b, long, feed)
    b.run()
    b.check_conserved()


def test_a_short_prompt_passes_long_ones_that_wait() -> None:
    b = engine(max_rows=1)
    for i in range(6):
        b.scheduler.submit(one(f"long{i}", LONG, i))
    b.advance()
    short = one("short", SHORT, 50)
    b.scheduler.submit(short)
    assert steps_until(b, short) <= LONG / STEP + 2, "it waited for more than the one that runs"
    b.run()
