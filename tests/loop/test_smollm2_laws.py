"""Promise 1 on the model that the server serves by default, in its own 4-bit blocks, on the fast kernels.

A token's result there does not depend on its batch, so the text must be equal to the last token, not only nearly.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine import build
from overdrive.text import open_text
from overdrive.types import SamplingParams

from .bench import RandomDrafts

PROMPTS = [
    "What is the capital of France?",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog.",
    "Write a Python function that adds two numbers, then write it again with type hints.",
    "List the months of the year.",
    "Why is the sky blue?",
]
NEW = 24

pytestmark = pytest.mark.smollm2


def answers(drafts: int, rows: int, page_size: int, chunk: int, rng=None) -> tuple[list[list[int]], int]:
    options = EngineOptions(
        model=ModelOptions(max_model_len=1024),
        memory=MemoryOptions(page_size=page_size, kv_tokens=8192),
        scheduler=SchedulerOptions(max_rows=rows, chunk=chunk),
        draft=DraftOptions(draft="ngram", drafts=drafts, ngram_min=2),
    )
    engine = build("smollm2", options, lambda *_: None, RandomDrafts(rng) if rng else None)
    tokenizer, template = open_text(Path(engine.info.source), options.model)
    requests = []
    for i, prompt in enumerate(PROMPTS):
        ids = tokenizer.encode(template.render([{"role": "user", "content": prompt}]), False)
        hot = SamplingParams(max_tokens=NEW, temperature=0.9, top_p=0.95, seed=i)
        requests.append(engine.submit(str(i), ids, hot if i % 2 else SamplingParams(max_tokens=NEW, temperature=0.0)))
    while not engine.idle:
        engine.advance()
    engine.close()
    return [list(request.output) for request in requests], sum(request.drafted for request in requests)


def test_text_does_not_depend_on_drafts_mates_pages_or_chunks() -> None:
    alone, _ = answers(drafts=0, rows=1, page_size=16, chunk=256)
    together, drafted = answers(drafts=3, rows=8, page_size=4, chunk=16)
    mixed, _ = answers(drafts=7, rows=3, page_size=64, chunk=48, rng=random.Random(1))
    assert together == alone
    assert mixed == alone
    assert drafted > 0, "no draft was accepted: the law was not tried"
