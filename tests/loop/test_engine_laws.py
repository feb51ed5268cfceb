"""The promises on a real model in float64: one token at a time gives the same text, whatever the engine does."""

from __future__ import annotations

import random

import pytest

from overdrive.device.stream import InlineStream, ThreadStream
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import SamplingParams
from tests.drafters import RandomDrafter

from .bench import Bench, RandomDrafts, StopAndGo
from .lazy import LazyStream
from .tiny_drafters import DRAFTERS, ngram
from .tiny_engine import VOCAB, tiny_bench, tiny_oracle
from .toy import ByteStops


def wild(rng: random.Random):
    return lambda room: RandomDrafter(VOCAB, rng.randrange(1 << 30))


def random_params(rng: random.Random, prompt_len: int) -> SamplingParams:
    hot = rng.random() < 0.6
    return SamplingParams(
        max_tokens=rng.randint(1, 16),
        min_tokens=rng.choice([0, 0, 4]),
        temperature=rng.choice([0.7, 1.0, 1.5]) if hot else 0.0,
        top_k=rng.choice([0, 0, 5]),
        top_p=rng.choice([1.0, 0.9]),
        min_p=rng.choice([0.0, 0.1]),
        presence_penalty=rng.choice([0.0, 0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.7, 1.1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        logit_bias=((rng.randrange(VOCAB), -100.0), (rng.randrange(VOCAB), 3.0)) if rng.random() < 0.3 else (),
        seed=rng.choice([0, 1, 2**40]),
        stop_token_ids=tuple(rng.sample(range(VOCAB), 2)) if rng.random() < 0.5 else (),
        stop=(bytes([rng.randrange(VOCAB)]), bytes(rng.sample(range(VOCAB), 2))) if rng.random() < 0.3 else (),
        max_drafts=rng.choice([-1, -1, -1, 0, 2]),
        logprobs=rng.choice([-1, -1, 0, 3]),
        prompt_logprobs=rng.choice([-1, -1, -1, 2]),
    )


def random_requests(rng: random.Random, count: int) -> list[Request]:
    shared = [rng.randrange(VOCAB) for _ in range(20)]
    requests = []
    for number in range(count):
        own = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 14))]
        prompt = [*shared[: rng.choice([0, 4, 11, 20])], *own, *(own if rng.random() < 0.5 else [])]
        params = random_params(rng, len(prompt))
        requests.append(Request(f"r{number}", tuple(prompt), params, number, ByteStops(params.stop)))
    return requests


def random_bounds(rng: random.Random) -> dict[str, int | bool]:
    """Pages for few or for many, rows, chunks, steps that hold little: of `Bounds`."""
    return {
        "n_pages": rng.choice([22, 30, 120]),
        "page_size": rng.choice([4, 4, 16]),
        "chunk": rng.choice([2, 5, 16, 128]),
        "max_step_tokens": rng.choice([8, 40]),
        "max_rows": rng.choice([1, 3, 5]),
        "lookahead": rng.choice([0, 1, 1]),
        "cached": rng.random() < 0.8,
    }


def check(b: Bench, requests: list[Request]) -> None:
    for request in requests:
        expected, finish = tiny_oracle(request.prompt, request.params)
        assert b.answers[request.id] == expected, request
        assert b.finishes[request.id] == [finish]
    b.check_conserved()


@pytest.mark.parametrize("block", range(8))
def test_text_does_not_depend_on_anything_the_engine_decides(block: int) -> None:
    """Random K, drafters, pages, chunks, batch mates, lookahead, caching, preemption, lateness; all sampling rules."""
    for seed in range(block * 10, block * 10 + 10):
        rng = random.Random(seed)
        b = tiny_bench(
            LazyStream(rng),
            rng.choice([RandomDrafts, StopAndGo])(rng),
            rng.choice([*DRAFTERS.values(), wild(rng)]),
            **random_bounds(rng),
        )
        requests = random_requests(rng, rng.randint(2, 7))
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        check(b, requests)


@pytest.mark.parametrize("drafts", [0, 1, 3, 5, 7])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_text_does_not_depend_on_k(drafts: int, drafter: str) -> None:
    rng = random.Random(5)
    b = tiny_bench(InlineStream(), FixedDrafts(drafts), DRAFTERS[drafter], lookahead=0)
    requests = random_requests(rng, 8)
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    check(b, requests)


@pytest.mark.parametrize("page_size", [4, 16, 64])
@pytest.mark.parametrize("chunk", [16, 128])
def test_text_does_not_depend_on_pages_and_chunks(page_size: int, chunk: int) -> None:
    rng = random.Random(6)
    stream = ThreadStream()
    b = tiny_bench(stream, FixedDrafts(3), ngram, page_size=page_size, chunk=chunk, max_step_tokens=200)
    requests = random_requests(rng, 6)
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    check(b, requests)
    stream.close()


def test_preempted_requests_resume_where_they_were() -> None:
    """Pages for two rows, five rows wanted: most are preempted, some more than once, and nobody notices."""
    rng = random.Random(7)
    b = tiny_bench(LazyStream(rng), FixedDrafts(3), ngram, n_pages=26, cached=False)
    params = SamplingParams(max_tokens=40, temperature=0.9, frequency_penalty=0.4, seed=3)
    requests = [Request(f"r{i}", tuple(range(i, i + 12)), params, i) for i in range(5)]
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    assert b.scheduler.preemptions >= 3
    check(b, requests)


def test_drafts_are_accepted_where_the_text_repeats() -> None:
    """The engine must profit: greedy text of a random model soon runs in circles, which n-gram drafts follow."""
    b = tiny_bench(InlineStream(), FixedDrafts(5), ngram, lookahead=0)
    request = Request("r", (1, 2, 3), SamplingParams(max_tokens=80, temperature=0.0), 0)
    b.scheduler.submit(request)
    b.run()
    assert request.drafted > 30
    check(b, [request])


def test_log_probabilities_end_where_the_text_ends() -> None:
    """Each committed token has one entry, equal at every K, and prompt positions are scored once, preempted or not."""
    entries = []
    for drafts, n_pages in ((0, 200), (5, 200), (5, 24)):
        rng = random.Random(8)
        b = tiny_bench(LazyStream(rng), FixedDrafts(drafts), ngram, n_pages=n_pages, chunk=5)
        params = SamplingParams(max_tokens=20, temperature=0.0, logprobs=3, prompt_logprobs=1, stop=(bytes([9]),))
        requests = [Request(f"r{i}", tuple(range(i, i + 14)), params, i, ByteStops(params.stop)) for i in range(4)]
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        for request in requests:
            assert len(b.scores[request.id]) == len(b.answers[request.id])
            assert len(b.prompt_scores[request.id]) == len(request.prompt) - 1
        entries.append((b.scores, b.prompt_scores))
    for scores, prompt_scores in entries[1:]:
        for found, first in ((scores, entries[0][0]), (prompt_scores, entries[0][1])):
            for name, values in first.items():
                assert found[name] == pytest.approx(values, abs=1e-6)
