"""A device that fails: who is at fault ends with an error, everyone else gets the text of a device that does not."""

from __future__ import annotations

import random

import pytest

from overdrive.errors import HostFault, OutOfDeviceMemory
from overdrive.loop import MOST_FAULTS_IN_A_ROW, Turn
from overdrive.policy.controller import FixedDrafts, LoadView
from overdrive.request import Request
from overdrive.types import FinishReason, Outcome, Plan, Step

from .bench import Bench
from .test_loop_laws import bench, make_request
from .toy import VOCAB, oracle
from .whole import whole


def submit(b: Bench, rng: random.Random, count: int) -> list[Request]:
    requests = [make_request(rng, i, [rng.randrange(1, VOCAB) for _ in range(9)]) for i in range(count)]
    for request in requests:
        b.scheduler.submit(request)
    return requests


def check(b: Bench, requests: list[Request], lost: list[Request]) -> None:
    """Those that were lost have an error, and a part of their text at most; the others have all of it."""
    for request in requests:
        expected, finish = oracle(request.prompt, request.params)
        found = b.answers.get(request.id, [])
        if request in lost:
            assert [end.reason for end in b.finishes[request.id]] == [FinishReason.ERROR]
            assert found == expected[: len(found)]
        else:
            assert (found, b.finishes[request.id]) == (expected, [finish])
    b.check_conserved()


def test_a_launch_that_fails_once_costs_nobody_anything_in_company() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        b = bench(rng, fail_at=rng.randint(1, 12), max_rows=3, lookahead=rng.choice([0, 1]), cached=seed % 2 == 0)
        requests = submit(b, rng, 8)
        b.run()
        lost = [request for request in requests if b.finishes[request.id][0].reason is FinishReason.ERROR]
        assert b.loop.faults == 1 and len(lost) <= 1, "one, where it ran alone"
        check(b, requests, lost)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError()])
def test_what_breaks_on_the_host_is_no_fault_of_the_device(monkeypatch, error: Exception) -> None:
    """Tokens that were half taken in are in no answer and would not be drawn again: the engine must end."""
    b = bench(random.Random(0))
    submit(b, random.Random(0), 3)
    settle, steps = b.committer.settle, iter(range(9))

    def breaks(step, outcome):
        deltas = settle(step, outcome)
        if next(steps) == 5:
            raise error
        return deltas

    monkeypatch.setattr(b.committer, "settle", breaks)
    with pytest.raises(HostFault, match="settling a step failed: "):
        b.run()
    assert b.loop.faults == 0 and b.loop.failure.startswith("settling a step failed: ")


class Breaking(FixedDrafts):
    """A controller, and a watch, that breaks in its fourth call at `where`."""

    def __init__(self, drafts: int, where: str, error: Exception) -> None:
        super().__init__(drafts)
        self._where, self._error, self._calls = where, error, 0

    def _call(self, where: str) -> None:
        self._calls += where == self._where
        if self._calls == 4:
            raise self._error

    def choose(self, view: LoadView) -> Plan:
        self._call("choose")
        return super().choose(view)

    def observe(self, step: Step, outcome: Outcome) -> None:
        self._call("observe")

    def watch(self, turn: Turn) -> None:
        self._call("watch")


ERRORS = [RuntimeError("a bug"), MemoryError(), KeyError("a bug"), OutOfDeviceMemory("a bug")]


@pytest.mark.parametrize("where", ["choose", "observe", "watch"])
@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("drafts", [0, 3])
def test_who_decides_or_watches_and_breaks_ends_the_engine(drafts, lookahead, error, where) -> None:
    """Not a device's fault, after which tokens that were settled and never sent would be missing from a text."""
    controller = Breaking(drafts, where, error)
    b = bench(random.Random(0), lookahead=lookahead, controller=controller, watches=[controller.watch])
    engine, requests = whole(b), submit(b, random.Random(0), 3)
    what = "planning" if where == "choose" else "observing"
    with pytest.raises(HostFault, match=rf"^{what} a step failed: .*{type(error).__name__}") as fault:
        b.run()
    assert (b.loop.faults, engine.failure) == (0, str(fault.value)) and "\n" not in engine.failure
    for request in requests:
        found = b.answers.get(request.id, [])
        assert found == oracle(request.prompt, request.params)[0][: len(found)]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_request_that_fails_every_step_it_is_in_ends_alone(lookahead: int) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        b = bench(rng, max_rows=6, lookahead=lookahead, cached=rng.random() < 0.5)
        requests = submit(b, rng, 9)
        poison = rng.choice(requests)
        b.runner.poison = poison.id
        b.run()
        check(b, requests, [poison])
        assert "the device is gone" in b.finishes[poison.id][0].message == f"the device failed: {b.loop.fault}"
        assert not b.loop.failure


def test_a_device_that_cannot_recover_ends_everyone_and_the_engine() -> None:
    rng = random.Random(1)
    b = bench(rng, max_rows=3, fail_at=4)
    b.runner.lost = True
    engine = whole(b)
    requests = submit(b, rng, 7)
    while not engine.idle:
        for delta in engine.advance():
            b.take(delta)
    assert engine.failure == "the device is lost: an illegal memory access was encountered"
    ended = [request for request in requests if b.finishes[request.id][0].reason is FinishReason.ERROR]
    assert len(ended) >= 5 and all(len(b.finishes[request.id]) == 1 for request in requests)
    b.check_conserved()


def test_a_device_on_which_nothing_runs_any_more_ends_the_engine() -> None:
    rng = random.Random(1)
    b = bench(rng, max_rows=4)
    b.runner.fits = 0
    engine = whole(b)
    submit(b, rng, 2 * MOST_FAULTS_IN_A_ROW + 9)
    while not engine.idle:
        for delta in engine.advance():
            b.take(delta)
    assert "times in a row" in engine.failure
    assert len(b.finishes) == 2 * MOST_FAULTS_IN_A_ROW + 9
    b.check_conserved()


@pytest.mark.parametrize("error", [MemoryError("host"), RuntimeError("host")])
def test_what_fails_before_it_is_launched_is_a_failed_launch(error: Exception, monkeypatch) -> None:
    rng = random.Random(2)
    b = bench(rng, max_rows=4)
    requests = submit(b, rng, 6)
    draft, calls = b.runner.draft, iter(range(10_000))

    def fail_once(step):
        if next(calls) == 5:
            raise error
        return draft(step)

    monkeypatch.setattr(b.runner, "draft", fail_once)
    b.run()
    assert b.loop.faults == 1
    check(b, requests, [])


def test_where_memory_does_not_last_fewer_run_at_once_and_nobody_is_lost() -> None:
    preemptions = 0
    for seed in range(40):
        rng = random.Random(seed)
        b = bench(rng, max_rows=6, lookahead=rng.choice([0, 1]), cached=rng.random() < 0.5)
        b.runner.fits = rng.randint(1, 3)
        requests = [make_request(rng, i, [rng.randrange(1, VOCAB) for _ in range(9)]) for i in range(9)]
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        preemptions += b.scheduler.preemptions
        for request in requests:
            expected, finish = oracle(request.prompt, request.params)
            assert b.answers[request.id] == expected
            assert b.finishes[request.id] == [finish]
        b.check_conserved()
    assert preemptions > 100


def test_a_request_too_large_for_the_device_ends_alone() -> None:
    rng = random.Random(3)
    b = bench(rng, max_rows=4)
    b.runner.fits = 0
    requests = [make_request(rng, i, [1, 2, 3]) for i in range(3)]
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    assert [b.finishes[r.id][0].reason for r in requests] == [FinishReason.ERROR] * 3
    b.check_conserved()
