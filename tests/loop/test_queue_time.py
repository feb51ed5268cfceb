"""The time that a request waited for a row is its own: from its submission to the first step that holds it."""

from __future__ import annotations

from overdrive.device.stream import InlineStream
from overdrive.engine_process import as_message
from overdrive.policy.controller import FixedDrafts
from overdrive.types import SamplingParams

from .tiny_drafters import ngram
from .tiny_engine import tiny_bench
from .whole import whole

PARAMS = SamplingParams(max_tokens=12, temperature=0.0)


def test_a_request_waits_until_a_step_holds_it() -> None:
    engine = whole(tiny_bench(InlineStream(), FixedDrafts(3), ngram, max_rows=1))
    first, second = (engine.submit(name, [1, 2, 3], PARAMS) for name in ("a", "b"))
    assert (first.queued, second.queued) == (0.0, 0.0)
    told: dict[str, set[float]] = {"a": set(), "b": set()}
    while not engine.idle:
        for delta in engine.advance():
            told[delta.request.id].add(as_message(delta).queued)
    assert first.submitted <= first.admitted < second.admitted
    assert told == {"a": {first.queued}, "b": {second.queued}}
    assert second.queued > first.queued
