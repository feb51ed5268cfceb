"""The loop's laws on random schedules: late streams, random K, chunks, pages, preemption, aborts, sharing, failures."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from overdrive.commit import Committer
from overdrive.device.stream import InlineStream
from overdrive.limits import Limits
from overdrive.loop import Loop, Watch
from overdrive.memory.pages import PagePool
from overdrive.memory.prefix import PrefixCache
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.scheduler import Scheduler
from overdrive.types import Finish, FinishReason, SamplingParams

from .bench import Bench, RandomDrafts
from .lazy import LazyStream
from .toy import EOS, VOCAB, ByteStops, ToyRunner, oracle


def bench(
    rng: random.Random,
    *,
    n_pages: int = 60,
    page_size: int = 4,
    max_rows: int = 5,
    chunk: int = 6,
    max_step_tokens: int = 24,
    lookahead: int = 1,
    cached: bool = True,
    controller=None,
    stream=None,
    fail_at: int = 0,
    watches: Sequence[Watch] = (),
) -> Bench:
    pool = PagePool(n_pages)
    limits = Limits(
        max_rows=max_rows,
        max_step_tokens=max_step_tokens,
        chunk=chunk,
        max_queue=100,
        max_model_len=64,
        page_size=page_size,
    )
    scheduler = Scheduler(limits, pool, PrefixCache(pool, page_size) if cached else None)
    runner = ToyRunner(stream or LazyStream(rng), rng, max_rows, n_pages, page_size, fail_at)
    committer = Committer(scheduler, DraftCounts(runner.sources, 8))
    loop = Loop(scheduler, controller or RandomDrafts(rng), runner, committer, lookahead, watches)
    return Bench(scheduler, runner, committer, loop)


def random_params(rng: random.Random, prompt_len: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=rng.randint(1, min(24, 64 - prompt_len)),
        min_tokens=rng.choice([0, 0, 3]),
        seed=rng.choice([0, 0, 1, 2]),
        stop_token_ids=(EOS,) if rng.random() < 0.7 else (),
        stop=(bytes([rng.randrange(1, VOCAB), rng.randrange(1, VOCAB)]), bytes([rng.randrange(1, VOCAB)]))
        if rng.random() < 0.4
        else (),
        max_drafts=rng.choice([-1, -1, -1, 0, 1]),
    )


def make_request(rng: random.Random, number: int, prompt: list[int]) -> Request:
    params = random_params(rng, len(prompt))
    return Request(f"r{number}", tuple(prompt), params, number, ByteStops(params.stop))


@pytest.mark.parametrize("block", range(20))
def test_text_does_not_depend_on_the_schedule(block: int) -> None:
    """2,000 random schedules: every answer and finish equals one-token-at-a-time generation, and nothing leaks."""
    preempted = 0
    for seed in range(block * 100, block * 100 + 100):
        preempted += one_random_schedule(random.Random(seed))
    assert preempted > 0, "the schedules no longer exercise preemption"


def one_random_schedule(rng: random.Random) -> int:
    b = bench(
        rng,
        n_pages=rng.choice([18, 24, 40, 90]),
        page_size=rng.choice([4, 4, 1, 8]) if rng.random() < 0.5 else 4,
        chunk=rng.choice([1, 3, 6, 16]),
        max_step_tokens=rng.choice([5, 12, 40]),
        max_rows=rng.choice([1, 3, 5]),
        lookahead=rng.choice([0, 1, 1, 1, 2]),
        cached=rng.random() < 0.8,
    )
    shared = [rng.randrange(1, VOCAB) for _ in range(12)]
    requests: list[Request] = []
    aborted: set[str] = set()

    def submit(prompt: list[int]) -> None:
        request = make_request(rng, len(requests), prompt)
        if b.scheduler.limits.pages(request.most_len) <= b.scheduler.pool.usable:
            requests.append(request)
            b.scheduler.submit(request)

    for _ in range(rng.randint(1, 9)):
        submit(shared[: rng.choice([0, 4, 8, 12])] + [rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 12))])
    turns, steps = 0, 0
    while not b.loop.idle or turns < 4:
        b.advance()
        steps += 1
        assert steps < 4000, "the engine makes no progress"
        if rng.random() < 0.05 and b.scheduler.running:
            victim = rng.choice(list(b.scheduler.running.values())).request
            aborted.add(victim.id)
            b.take(b.committer.abort(victim, Finish(FinishReason.ABORT)))
        if rng.random() < 0.2 and turns < 4:
            turns += 1
            done = [r for r in requests if r.finish and r.id not in aborted and len(r.tokens) < 40]
            if done:  # a second turn: the next prompt extends a finished transcript
                submit([*rng.choice(done).tokens, *(rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 4)))])
    for request in requests:
        assert len(b.finishes[request.id]) == 1, "exactly one finish"
        if request.id not in aborted:
            expected, finish = oracle(request.prompt, request.params)
            assert b.answers[request.id] == expected == list(request.output)
            assert b.finishes[request.id] == [finish]
    b.check_conserved()
    return b.scheduler.preemptions


def test_requests_that_arrive_together_share_their_beginning() -> None:
    rng = random.Random(1)
    b = bench(
        rng, n_pages=200, max_rows=8, chunk=16, max_step_tokens=200, controller=FixedDrafts(0), stream=InlineStream()
    )
    prefix = [rng.randrange(1, VOCAB) for _ in range(32)]
    for i in range(8):
        params = SamplingParams(max_tokens=1)
        b.scheduler.submit(Request(f"r{i}", (*prefix, 1 + i % 9, 2), params, i))
    b.run()
    assert b.runner.fed_tokens == 34 + 7 * 2, "only the first computes what all share"
    assert b.scheduler.cache.hit_tokens == 7 * 32


def test_second_turn_finds_the_first_in_the_cache() -> None:
    rng = random.Random(2)
    b = bench(rng, n_pages=200, controller=FixedDrafts(3))
    first = Request("a", tuple([1, 2, 3, 4, 5] * 3), SamplingParams(max_tokens=14), 0)
    b.scheduler.submit(first)
    b.run()
    second = Request("b", (*first.tokens, 5, 6), SamplingParams(max_tokens=3), 1)
    b.scheduler.submit(second)
    b.run()
    assert second.cached_tokens == (len(first.tokens) - 1) // 4 * 4


def test_opting_out_of_drafts_offers_none() -> None:
    rng = random.Random(3)
    b = bench(rng, controller=FixedDrafts(5))
    out = Request("out", (1, 2, 3), SamplingParams(max_tokens=20, max_drafts=0), 0)
    other = Request("in", (1, 2, 3), SamplingParams(max_tokens=20), 1)
    b.scheduler.submit(out)
    b.scheduler.submit(other)
    b.run()
    assert out.offered == 0 and out.drafted == 0
    assert other.offered > 0
    assert out.tokens == other.tokens
