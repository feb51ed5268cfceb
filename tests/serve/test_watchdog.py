"""Laws of silence: who says something is never stuck, and who says nothing is stuck from the limit on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overdrive.device.stream import InlineStream
from overdrive.engine_process import _Served
from overdrive.policy.controller import FixedDrafts
from overdrive.serve.watchdog import Silence
from overdrive.types import SamplingParams
from overdrive.wire import Stats, Stop, Submit
from tests.effort import effort
from tests.loop.tiny_drafters import ngram
from tests.loop.tiny_engine import tiny_bench
from tests.loop.whole import whole

EXACT = 64  # parts of a second, whose sums are exact
LOOKS = st.lists(st.integers(1, 2 * EXACT).map(lambda parts: parts / EXACT), min_size=1, max_size=60)  # between looks


@effort(0.5)
@given(looks=LOOKS)
def test_who_says_something_between_looks_is_never_stuck(looks: list[float]) -> None:
    silence, now = Silence(1e-6, 1.0), 50.0
    for heard, seconds in enumerate(looks):
        now += seconds
        assert not silence.too_long(heard, now)


@effort(0.5)
@given(looks=LOOKS, limit=st.integers(1, 30 * EXACT).map(lambda parts: parts / EXACT))
def test_silence_is_too_long_from_the_limit_on(looks: list[float], limit: float) -> None:
    silence, began = Silence(limit, 1.0), 50.0
    assert not silence.too_long(7, began)
    now = began
    for seconds in looks:
        now += seconds
        assert silence.too_long(7, now) == (now - began >= limit)
    assert not silence.too_long(8, now)


def test_nobody_is_stuck_where_there_is_no_limit() -> None:
    silence = Silence(0.0, 1.0)
    assert not any(silence.too_long(0, float(second)) for second in range(100_000))


def test_a_listener_that_slept_does_not_blame_the_engine() -> None:
    """Signs of life that came meanwhile are read after the first look."""
    silence = Silence(600.0, 1.0)
    silence.too_long(5, 0.0)
    assert not silence.too_long(5, 86_400.0)
    assert not silence.too_long(6, 86_401.0)


@dataclass
class Listener:
    """The other end of an engine's link, and the engine's clock: every look at the link takes a while."""

    incoming: list[Any]
    until: float
    now: float = 100.0
    told: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def poll(self, seconds: float) -> list[Any]:
        self.now += max(seconds, 0.01)
        messages, self.incoming = self.incoming, []
        return [*messages, *([Stop()] if self.now > self.until else [])]

    def send(self, message: Any) -> None:
        if isinstance(message, Stats):
            self.told.append(self.now)


@pytest.mark.parametrize("requests", [0, 3])
def test_an_engine_gives_a_sign_of_life_every_second_idle_or_busy(
    monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    engine = whole(tiny_bench(InlineStream(), FixedDrafts(3), ngram))
    params = SamplingParams(max_tokens=60)
    listener = Listener([Submit(f"r{i}", [i, 2, 3], params, 0.0) for i in range(requests)], until=110.0)
    clock = SimpleNamespace(monotonic=listener.monotonic, time=lambda: 0.0)
    monkeypatch.setattr("overdrive.engine_process.time", clock)
    link: Any = listener
    _Served(engine, link).run()
    moments = [100.0, *listener.told, 110.0]
    assert max(later - earlier for earlier, later in pairwise(moments)) < 1.0
