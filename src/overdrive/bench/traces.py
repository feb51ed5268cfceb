"""Arrivals and lengths from published traces. Knows their file formats; never the texts, which traces do not hold."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from overdrive.bench.prompts import read_rows
from overdrive.errors import OverdriveError


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace. seconds: since its first one. tokens: of the prompt and of the answer."""

    seconds: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[Arrival]:
    """A trace in the form of Azure's (CSV: TIMESTAMP, ContextTokens, GeneratedTokens) or of Mooncake's (JSON lines:
    timestamp in ms, input_length, output_length), in order of arrival, beginning at 0 s."""
    try:
        arrivals = sorted(_azure(path) if path.suffix == ".csv" else _mooncake(path), key=lambda one: one.seconds)
    except (KeyError, TypeError, ValueError) as error:
        wanted = "TIMESTAMP,ContextTokens,GeneratedTokens (csv) or timestamp, input_length, output_length (jsonl)"
        raise OverdriveError(f"--trace {path}: not a list of requests with {wanted} ({error!r})") from None
    if not arrivals:
        raise OverdriveError(f"--trace {path}: no requests in it")
    first = arrivals[0].seconds
    return [Arrival(one.seconds - first, one.prompt_tokens, one.output_tokens) for one in arrivals]


def _azure(path: Path) -> Iterator[Arrival]:
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                when = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                yield Arrival(when, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
    except OSError as error:
        raise OverdriveError(f"cannot read {path}: {error.strerror or error}") from None


def _mooncake(path: Path) -> Iterator[Arrival]:
    for row in read_rows(path):
        yield Arrival(row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]))


def clip(one: Arrival, most_prompt: int, most_output: int) -> Arrival:
    """The same arrival with lengths of at most so many tokens, and at least 1."""
    return Arrival(
        one.seconds, max(1, min(one.prompt_tokens, most_prompt)), max(1, min(one.output_tokens, most_output))
    )
