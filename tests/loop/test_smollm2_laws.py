"""Promise 1 on the model that the server serves by default, in its own 4-bit blocks, on the fast kernels.

A token's result there does not depend on its batch, so the text must be equal to the last token, not only nearly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine import Engine, build
from overdrive.policy.controller import Controller, FixedDrafts
from overdrive.request import Request
from overdrive.text import open_text
from overdrive.types import SamplingParams

from .bench import RandomDrafts, StopAndGo

PROMPTS = [
    "What is the capital of France?",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog.",
    "Write a Python function that adds two numbers, then write it again with type hints.",
    "List the months of the year.",
    "Why is the sky blue?",
]
NEW = 24
MOST = 7  # drafts, of the controllers that choose at random

pytestmark = pytest.mark.smollm2


def engine(controller: Controller, draft: DraftOptions, rows: int = 8, page_size: int = 16, chunk: int = 256) -> Engine:
    options = EngineOptions(
        model=ModelOptions(max_model_len=1024),
        memory=MemoryOptions(page_size=page_size, kv_tokens=8192),
        scheduler=SchedulerOptions(max_rows=rows, chunk=chunk),
        draft=draft,
    )
    return build("smollm2", options, lambda *_: None, controller)


@lru_cache(maxsize=1)
def prompt_ids(source: Path) -> list[list[int]]:
    tokenizer, template = open_text(source, ModelOptions())
    return [tokenizer.encode(template.render([{"role": "user", "content": text}]), False) for text in PROMPTS]


def answered(engine: Engine, new: int = NEW) -> list[Request]:
    """All prompts together, every other one sampled. Closes the engine."""
    requests = []
    for i, ids in enumerate(prompt_ids(Path(engine.info.source))):
        hot = SamplingParams(max_tokens=new, temperature=0.9, top_p=0.95, seed=i)
        requests.append(engine.submit(str(i), ids, hot if i % 2 else SamplingParams(max_tokens=new, temperature=0.0)))
    while not engine.idle:
        engine.advance()
    engine.close()
    return requests


def texts(requests: Sequence[Request]) -> list[list[int]]:
    return [list(request.output) for request in requests]


@lru_cache(maxsize=2)
def plain_texts(new: int) -> list[list[int]]:
    """One request after the other, no drafter."""
    return texts(answered(engine(FixedDrafts(0), DraftOptions(draft="none"), rows=1), new))


def test_text_does_not_depend_on_drafts_mates_pages_or_chunks() -> None:
    copies = DraftOptions(draft="ngram", drafts=MOST, ngram_min=2)
    together = answered(engine(FixedDrafts(3), copies, page_size=4, chunk=16))
    mixed = answered(engine(RandomDrafts(random.Random(1)), copies, rows=3, page_size=64, chunk=48))
    assert texts(together) == plain_texts(NEW)
    assert texts(mixed) == plain_texts(NEW)
    assert sum(request.drafted for request in [*together, *mixed]) > 0, "no draft was accepted: the law was not tried"


@pytest.mark.parametrize(("draft", "sources"), [("auto", "ngram+eagle3"), ("eagle3", "eagle3")])
def test_text_does_not_depend_on_a_head_that_stops_and_goes(draft: str, sources: str) -> None:
    """K another one every step, with stretches of up to 10 steps without drafts; the head lags and catches up."""
    stop_and_go = engine(
        StopAndGo(random.Random(2), longest=10), DraftOptions(draft=draft, drafts=MOST, ngram_min=1), rows=4
    )
    assert stop_and_go.info.drafter == sources
    requests = answered(stop_and_go)
    assert texts(requests) == plain_texts(NEW)
    assert 0 < sum(request.drafted for request in requests) < sum(request.offered for request in requests)


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["eagle3", "ngram+eagle3"])
@pytest.mark.parametrize("seed", range(3))
def test_text_does_not_depend_on_long_stops_small_windows_and_mates(draft: str, seed: int) -> None:
    """Stretches of up to 100 steps without drafts, longer than the window of some; pages and chunks of all sizes."""
    rng, new = random.Random(seed), 12 * NEW
    options = DraftOptions(draft=draft, drafts=MOST, draft_window=rng.choice([16, 64, 256]), ngram_min=1)
    controller = StopAndGo(rng, longest=100)
    chunk = rng.choice([15, 63, 255])
    requests = answered(engine(controller, options, rng.choice([1, 2, 5]), rng.choice([4, 16, 64]), chunk), new)
    assert texts(requests) == plain_texts(new)
    assert sum(request.drafted for request in requests) > 20


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    """As its own small model, greedy and sampled, through stops: every draft is accepted."""
    own = DraftOptions(draft="small", draft_model="smollm2", drafts=MOST)
    stop_and_go = engine(StopAndGo(random.Random(4), longest=10), own, rows=4)
    requests = answered(stop_and_go)
    assert texts(requests) == plain_texts(NEW)
    assert all(request.drafted == request.offered > 0 for request in requests)
    for counts in stop_and_go.stats().drafts:
        if counts.source == "grammar" or "constrained" in counts.key:  # nobody asked for one
            continue
        assert counts.accepted == counts.reached == counts.offered
        assert sum(counts.accepted) > 15, counts.key
