"""A request is over at its deadline, wherever it is, with an error that says so; nobody else notices."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overdrive.deadlines import Deadlines
from overdrive.device.stream import InlineStream
from overdrive.engine import Engine
from overdrive.engine_process import _Served
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import FinishReason, SamplingParams
from overdrive.wire import Submit

from .test_lost_ranks import Link
from .tiny_drafters import ngram
from .tiny_engine import tiny_bench, tiny_oracle
from .whole import whole

LONG = SamplingParams(max_tokens=60, temperature=0.0)


@dataclass
class Clock:
    """Stands still unless it is told otherwise."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("overdrive.engine.time", clock)
    return clock


def two_rows() -> Engine:
    return whole(tiny_bench(InlineStream(), FixedDrafts(3), ngram, max_rows=2))


def run(engine: Engine, deltas: list) -> dict[str, tuple]:
    """Every finish by the request's id."""
    while not engine.idle:
        deltas += engine.advance()
    ends = [delta for delta in deltas if delta.finish]
    assert len({delta.request.id for delta in ends}) == len(ends)
    return {delta.request.id: (delta.finish.reason, delta.finish.status) for delta in ends}


def test_waiting_and_running_requests_end_at_their_deadline(clock: Clock) -> None:
    engine = two_rows()
    requests = [engine.submit(f"r{i}", (i, 2, 3), LONG, patience) for i, patience in enumerate((5, inf, 5, 900))]
    deltas = [delta for _ in range(4) for delta in engine.advance()]
    assert requests[0].output_len and not requests[2].output_len
    clock.now += 6
    ends = run(engine, deltas)
    assert {name for name, (reason, status) in ends.items() if (reason, status) == (FinishReason.ERROR, 504)} == {
        "r0",
        "r2",
    }
    assert "5 seconds" in requests[0].finish.message and "tokens written" in requests[0].finish.message
    assert "no token written" in requests[2].finish.message
    for request in (requests[1], requests[3]):
        assert list(request.output) == tiny_oracle(request.prompt, request.params)[0]


def test_time_that_went_by_before_counts(clock: Clock) -> None:
    engine = two_rows()
    engine.submit("late", (1, 2), LONG, 5, 5)
    engine.submit("early", (1, 2), LONG, 5, 4.9)
    ends = run(engine, [])
    assert (ends["late"][0], ends["early"][0]) == (FinishReason.ERROR, FinishReason.LENGTH)


def test_the_deadline_crosses_the_link() -> None:
    link = Link([Submit(f"r{i}", [i, 2, 3], LONG, 0.0, deadline) for i, deadline in enumerate((0.0, inf))])
    served = _Served(two_rows(), link)
    for message in link.poll(0):
        served._take(message)
    while not served._engine.idle:
        served._publish(served._engine.advance())
    ends = {message.id: (message.finish, message.status) for message in link.sent if message.finish}
    assert ends["r0"] == (FinishReason.ERROR, 504)
    assert ends["r1"][0] is FinishReason.LENGTH


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20), st.booleans())))
def test_none_is_missed_and_none_ends_early(events: list[tuple[int, int, bool]]) -> None:
    """(time that goes by, patience of a new request, whether the oldest finishes by itself)"""
    deadlines, living, now = Deadlines(), [], 0.0
    for number, (gone, patience, finishes) in enumerate(events):
        now += gone
        request = Request(f"r{number}", (1,), LONG, number, deadline=now + patience)
        deadlines.note(request)
        living.append(request)
        if finishes:
            living.pop(0)
        passed = deadlines.passed(iter(living), now)
        assert passed == [one for one in living if one.deadline <= now]
        living = [one for one in living if one not in passed]
