"""The promises with a model divided among ranks: the text is that of one rank alone, whatever the engine does."""

from __future__ import annotations

import random

import pytest

from .bench import RandomDrafts, StopAndGo
from .crew import Crew
from .lazy import LazyStream
from .test_engine_laws import check, random_requests, wild
from .tiny_drafters import DRAFTERS


@pytest.mark.parametrize("block", range(2))
def test_text_does_not_depend_on_ranks(block: int) -> None:
    """Random K, drafters, pages, chunks, batch mates, lookahead, caching, preemption, aborts; all sampling rules."""
    for seed in range(block * 6, block * 6 + 6):
        rng = random.Random(seed)
        with Crew(2) as crew:
            b = crew.bench(
                LazyStream(rng),
                rng.choice([RandomDrafts, StopAndGo])(rng),
                rng.choice([*DRAFTERS.values(), wild(rng)]),
                n_pages=rng.choice([22, 30, 120]),
                page_size=rng.choice([4, 4, 16]),
                chunk=rng.choice([2, 5, 16, 128]),
                max_step_tokens=rng.choice([8, 40]),
                max_rows=rng.choice([1, 3, 5]),
                lookahead=rng.choice([0, 1, 1]),
                cached=rng.random() < 0.8,
            )
            requests = random_requests(rng, rng.randint(2, 7))
            for request in requests:
                b.scheduler.submit(request)
            b.run()
            check(b, requests)
            assert crew.meeting.held > 4 * b.loop.times.steps
