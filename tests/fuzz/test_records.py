"""Prompts, traces and stored costs that somebody else wrote: read, or refused in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overdrive.bench.prompts import read_source
from overdrive.bench.records import read_results
from overdrive.bench.traces import read_trace
from overdrive.cost_store import CostStore
from overdrive.policy.simulation.traces import read_trace as read_load
from overdrive.text import ByteTokenizer, ChatTemplate
from overdrive.train.prompts import encode_prompts, read_prompts
from tests.effort import effort
from tests.unit.test_cost_store import KEY, table

from .damage import answers, damaged, deep, json_text

TURN = {"role": "user", "content": "hello"}
PROMPTS: list[dict[str, Any]] = [
    {"prompt": "hello", "turns": ["a", "b"]},
    {"messages": [TURN, {"role": "assistant", "content": "yes"}]},
    {"id": "x", "prompt": "hello", "category": "chat", "tokens": [1, 2]},
    {"conversation": [TURN], "question": 5},
]
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04,396,109\n"
MOONCAKE = {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [1]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@st.composite
def lines_of(draw: st.DrawFn, rows: list[dict[str, Any]]) -> bytes:
    """JSON lines, some of them changed, or bytes that were."""
    if draw(st.booleans()):
        return b"\n".join(draw(st.lists(st.sampled_from(rows).flatmap(json_text), max_size=3)))
    return draw(damaged(b"\n".join(json.dumps(row).encode() for row in rows), 400))


@effort(1.0)
@given(content=lines_of(PROMPTS), packed=st.booleans())
@example(content=deep(100_000).encode(), packed=False)
@example(content=deep(100_000).encode(), packed=True)
def test_prompts(place: Path, content: bytes, packed: bool) -> None:
    path = write(place / ("prompts.jsonl.gz" if packed else "prompts.jsonl"), content)
    source = answers(lambda: read_source(path, 0, 9))
    answers(lambda: read_results(path))
    if source is not None:
        source.of_length(5, 0)
    if packed:
        path.write_bytes(content)  # what says that it is compressed and is not
        answers(lambda: read_source(path, 0, 9))
        return
    prompts = answers(lambda: read_prompts(path))
    if prompts is not None:
        template = ChatTemplate({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {}, "test")
        answers(lambda: encode_prompts(prompts, path, ByteTokenizer(), template, 64))


@effort(1.0)
@given(content=damaged(AZURE, 200) | lines_of([MOONCAKE] * 2), suffix=st.sampled_from([".csv", ".jsonl", ".jsonl.gz"]))
def test_traces(place: Path, content: bytes, suffix: str) -> None:
    path = write(place / f"trace{suffix}", content)
    answers(lambda: read_trace(path))
    answers(lambda: read_load(path, 100, 1.0, 1 << 20))


@effort(1.0)
@given(data=st.data())
def test_stored_costs_are_used_or_measured_anew(place: Path, data: st.DataObject) -> None:
    store = CostStore(place)
    store.save(KEY, table())
    assert store.load(KEY) is not None
    stored = json.loads(store.path(KEY).read_text())
    store.path(KEY).write_bytes(data.draw(json_text(stored)))
    found = store.load(KEY)
    if found is not None:
        found.step(5, 100)
