"""Many requests, too little memory, clients that leave: nobody's text changes and everything comes back."""

from __future__ import annotations

import random

import pytest

from overdrive.policy.controller import Controller, LoadView
from overdrive.request import Request
from overdrive.types import Finish, FinishReason, Plan, Why
from tests.loop.bench import Bench
from tests.loop.tiny_engine import VOCAB

from .engines import FLIPPING, NAMES, PLAIN, Setting, alone, ask, check_alone, engine, every_setting, request, text_of

SHARED = tuple((11 * i + 5) % VOCAB for i in range(24))
CROWDED = [Setting("ngram", 7, True), Setting("ngram", FLIPPING, False), Setting("random", 7, True), PLAIN]
LATER = [Setting(name, k, overlap) for name in NAMES for k in (1, 3, 7, FLIPPING) for overlap in (False, True)]
every_crowd = pytest.mark.parametrize(
    "setting",
    [*CROWDED, *(pytest.param(one, marks=pytest.mark.slow) for one in LATER if one not in CROWDED)],
    ids=str,
)


def leave(bench: Bench, one: Request) -> None:
    """The client of `one` goes away, whatever the engine is doing with it."""
    if one.finish is None:
        bench.take(bench.committer.abort(one, Finish(FinishReason.ABORT)))


@every_setting
def test_a_cancelled_sibling_changes_nobody_elses_text(setting: Setting) -> None:
    """One long prefix, four ends; one of them is cancelled in the middle of its answer, beside two strangers."""
    siblings = [request(f"s{i}", (*SHARED, 60 + i), i, max_tokens=24) for i in range(4)]
    strangers = [request(f"x{i}", (i, 3, 2), 4 + i, temperature=1.1, seed=i) for i in range(2)]
    for leaver in range(4):
        again = [request(one.id, one.prompt, one.arrival, max_tokens=24) for one in siblings]
        others = [request(s.id, s.prompt, s.arrival, temperature=1.1, seed=s.params.seed) for s in strangers]
        with engine(setting, [text_of(one) for one in siblings + strangers]) as bench:
            for one in again + others:
                bench.scheduler.submit(one)
            while again[leaver].output_len < 4:
                bench.advance()
            leave(bench, again[leaver])
            bench.run()
        check_alone(bench, [one for one in again + others if one is not again[leaver]])
        if again[leaver].finish.reason is FinishReason.ABORT:
            part = tuple(bench.answers[again[leaver].id])
            assert part == alone(again[leaver].prompt, again[leaver].params)[0][: len(part)]


@every_crowd
def test_a_thousand_requests_with_every_kind_of_end_return_every_page(setting: Setting) -> None:
    rng = random.Random(3)
    with engine(setting, max_rows=16, max_step_tokens=160, n_pages=150) as bench:
        pool, running = bench.scheduler.pool, []
        free = pool.available
        for number in range(1000):
            prompt = (*SHARED[: rng.choice([0, 8, 24])], *rng.choices(range(VOCAB), k=rng.randint(1, 6)))
            stops = tuple(rng.sample(range(VOCAB), 3)) if number % 3 == 0 else ()
            stop = (bytes(rng.choices(range(VOCAB), k=1)),) if number % 3 == 1 else ()
            temperature = rng.choice([0.0, 1.0])
            params = {"max_tokens": rng.randint(1, 12), "temperature": temperature, "seed": number}
            running.append(request(f"r{number}", prompt, number, stop_token_ids=stops, stop=stop, **params))
            bench.scheduler.submit(running[-1])
            while len(bench.scheduler.waiting) > 20:
                bench.advance()
            if number % 7 == 0:
                leave(bench, rng.choice(running[-30:]))
        bench.run()
        assert pool.available == free
    reasons = {finish.reason for ends in bench.finishes.values() for finish in ends}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT}
    assert [len(bench.finishes[one.id]) for one in running] == [1] * 1000
    check_alone(bench, [one for one in running[::25] if one.finish.reason is not FinishReason.ABORT])


@every_crowd
def test_memory_for_half_the_load_and_random_kills(setting: Setting) -> None:
    """Rows are preempted and clients leave at every moment; who stays gets the text of its solo run."""
    rng = random.Random(4)
    requests = [
        request(f"r{i}", rng.choices(range(VOCAB), k=12), i, max_tokens=36, temperature=(i % 2) * 0.9, seed=i)
        for i in range(24)
    ]
    with engine(setting, [text_of(one) for one in requests], max_rows=8, n_pages=8 * 12 // 2) as bench:
        free = bench.scheduler.pool.available
        for one in requests:
            bench.scheduler.submit(one)
        while not bench.loop.idle:
            bench.advance()
            if rng.random() < 0.03:
                leave(bench, rng.choice(requests))
        assert bench.scheduler.pool.available == free
        assert bench.scheduler.preemptions > 0
    stayed = [one for one in requests if one.finish.reason is not FinishReason.ABORT]
    assert 4 < len(stayed) < 24
    check_alone(bench, stayed)


@pytest.mark.parametrize("budget", [8, 12, 20, 64])
def test_running_requests_are_not_capped_by_speculation(budget: int) -> None:
    """Drafts that are all wrong cost no step: every row still yields a token per step, however small the budget."""
    steps = {}
    for setting in (PLAIN, Setting("random", 7, False)):
        requests = [request(f"r{i}", (i, 5), i, max_tokens=30, temperature=1.0, seed=i) for i in range(8)]
        with engine(setting, max_rows=8, max_step_tokens=budget) as bench:
            ask(bench, requests)
            steps[setting.drafter] = bench.loop.times.steps
    assert steps["random"] <= steps["none"]


class QuietWhenCrowded(Controller):
    """Drafts, or not while it is told of a crowd: as a controller does that knows the load."""

    plans = tuple(range(1, 16))
    crowded = False

    def choose(self, view: LoadView) -> Plan:
        return Plan(0 if self.crowded else 7, Why(rule="test"))


@pytest.mark.parametrize("drafter", ["ngram", "small", "ngram+small"])
@pytest.mark.parametrize("overlap", [False, True], ids=["inline", "overlap"])
def test_acceptance_returns_after_a_crowd(drafter: str, overlap: bool) -> None:
    """A request that repeats itself is drafted, is not while forty short ones pass, and is again afterwards."""
    long = request("long", (6, 2, 3), max_tokens=90)
    setting = Setting(drafter, 7, overlap)
    with engine(setting) as bench:
        controller = bench.loop._controller = QuietWhenCrowded()
        bench.scheduler.submit(long)
        while not long.drafted:
            bench.advance()
        crowd = [request(f"c{i}", (i, i + 1), 1 + i, max_tokens=2, temperature=1.0, seed=i) for i in range(40)]
        for one in crowd:
            bench.scheduler.submit(one)
        controller.crowded = True
        while any(one.finish is None for one in crowd):
            bench.advance()
        controller.crowded = False
        said, before = tuple(long.tokens), long.drafted
        bench.run()
    fresh = request("fresh", said, max_tokens=93 - len(said))
    with engine(setting) as other:
        ask(other, [fresh])
    assert long.drafted - before >= fresh.drafted - 7  # one step's drafts: they may begin at another token
    assert fresh.drafted > 14
    check_alone(bench, [long, *crowd])


@pytest.mark.slow
def test_speculation_recovers_after_random_text() -> None:
    """Two hundred hot requests leave no trace: those that repeat themselves are drafted as on a fresh engine."""

    def copying(first: int) -> list[Request]:
        return [request(f"copy{i}", (i % VOCAB, 3, i // 8), first + i, max_tokens=30) for i in range(200)]

    drafted = []
    for noise in (0, 200):
        hot = [request(f"hot{i}", (i % VOCAB, 9), i, max_tokens=8, temperature=3.0, seed=i) for i in range(noise)]
        again = copying(noise)
        with engine(Setting("ngram", 7, True), max_rows=8, max_step_tokens=128, n_pages=400) as bench:
            for batch in (hot, again):
                for start in range(0, len(batch), 50):
                    ask(bench, batch[start : start + 50])
        drafted.append([one.drafted for one in again])
    assert drafted[0] == drafted[1]
    assert sum(drafted[0]) > 200 * 5


def test_acceptance_of_the_last_requests_is_that_of_the_first() -> None:
    """Eight rounds of the same prompts on one engine."""
    rounds = []
    with engine(Setting("ngram", 7, False), max_rows=8, max_step_tokens=128) as bench:
        for number in range(8):
            batch = [request(f"{number}-{i}", (i, 4, 2 * i), 25 * number + i, max_tokens=24) for i in range(25)]
            ask(bench, batch)
            rounds.append([(one.drafted, tuple(bench.answers[one.id])) for one in batch])
    assert all(later == rounds[0] for later in rounds)
    assert sum(count for count, _ in rounds[0]) > 25
