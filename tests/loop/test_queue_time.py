"""What admission is told of: how long a request waited for a row, and how many prompt tokens came in."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("cached", [True, False])
def test_admitted_prompt_tokens_are_counted_without_a_prefix_cache_too(cached: bool) -> None:
    engine = whole(tiny_bench(InlineStream(), FixedDrafts(0), ngram, cached=cached))
    for name in ("a", "b"):
        engine.submit(name, [1, 2, 3, 4, 5, 6], PARAMS)
        while not engine.idle:
            engine.advance()
    stats = engine.stats()
    assert stats.prompt_tokens == 12
    assert (stats.prefix_tokens > 0) == cached
