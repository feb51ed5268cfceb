"""Recorded traces as loads: arrival times with the lengths of prompts and answers, from files.

Reads the CSV of Azure's LLM inference traces (TIMESTAMP, ContextTokens, GeneratedTokens) and the JSON lines of
Mooncake's (timestamp in ms, input_length, output_length), compressed or not.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

from overdrive.errors import OverdriveError, system_reason
from overdrive.json_text import parse_json
from overdrive.policy.simulation.loads import Recorded

Request = tuple[float, int, int]  # seconds, tokens of the prompt, tokens of the answer


def read_trace(path: Path, requests: int, speed: float, longest: int) -> Recorded:
    """The first `requests` of a trace, `speed` times as fast; prompts are cut at `longest` tokens.

    Raises OverdriveError for a file that is missing or of another form.
    """
    try:
        with _open(path) as lines:
            parse = _json_lines if ".jsonl" in path.suffixes else _csv
            found = sorted(islice(parse(lines), requests))
    except OSError as error:
        raise OverdriveError(f"{path} cannot be read: {system_reason(error)}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise OverdriveError(f"{path} cannot be read as a trace of requests: {error!r}") from None
    if not found:
        raise OverdriveError(f"{path} holds no requests")
    times = np.array([seconds for seconds, _, _ in found])
    sizes = np.array([(min(prompt, longest), output) for _, prompt, output in found], np.int64)
    return Recorded(path.name.partition(".")[0], (times - times[0]) / speed, np.maximum(sizes, 1))


def _open(path: Path) -> TextIO:
    return io.TextIOWrapper(gzip.open(path), encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _csv(lines: Iterable[str]) -> Iterator[Request]:
    for row in csv.DictReader(lines):
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        yield at, int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _json_lines(lines: Iterable[str]) -> Iterator[Request]:
    for line in lines:
        row = parse_json(line)
        yield row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"])
