"""Decisions on record: two arms of one run compared, and a line about it in a file that is kept.

Only arms of one interleaved run are compared: times of different runs on a shared machine mean nothing side by side.
A question stays closed until the machine or the code changes, so asking it again is pointed out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overdrive.bench.prompts import read_rows
from overdrive.bench.ratios import Ratio, Table
from overdrive.bench.setting import machine_words
from overdrive.errors import OverdriveError


@dataclass(frozen=True, slots=True)
class Decision:
    """A line of the ledger. arms: name to what sets it apart. evidence: load to the ratio of the first arm to the
    second. results: name of the file they come from."""

    question: str
    arms: dict[str, Any]
    verdict: str
    evidence: dict[str, str]
    date: str
    machine: str
    commit: str
    results: str


def compare(table: Table, arm: str, other: str, question: str, results: str) -> Decision:
    """Puts the evidence together. Raises OverdriveError for arms that the run does not have or that share no block."""
    for name in (arm, other):
        if name not in table.arms:
            raise OverdriveError(f"no measured arm {name!r} in {results}; it has {', '.join(table.arms) or 'none'}")
    found = {load: table.ratio(arm, other, load) for load in table.results.loads}
    ratios = {load: ratio for load, ratio in found.items() if ratio is not None}
    if not ratios:
        raise OverdriveError(f"{arm} and {other} have no turn in common in {results}, so there is no ratio")
    run = table.results.run
    bodies = {one["name"]: one["body"] or one["url"] for one in run["arms"] if one["name"] in (arm, other)}
    return Decision(
        question=question or f"{run.get('mode')}: is {arm} faster than {other}?",
        arms={arm: bodies[arm], other: bodies[other]},
        verdict=_words(arm, other, ratios) + (f" Unfinished: {table.results.ended}." if table.results.ended else ""),
        evidence={f"{load:g}": str(ratio) for load, ratio in ratios.items()},
        date=str(run.get("date", "")),
        machine=machine_words(run.get("machine", {})),
        commit=str(run.get("versions", {}).get("commit", "")),
        results=results,
    )


def _words(arm: str, other: str, ratios: dict[float, Ratio]) -> str:
    parts = []
    for word in ("faster", "slower", "unclear"):
        if loads := [f"{load:g}" for load, ratio in ratios.items() if ratio.word == word]:
            said = "not shown to differ from" if word == "unclear" else f"{word} than"
            parts.append(f"{said} {other} at load {', '.join(loads)}")
    return f"{arm} is {'; '.join(parts)}."


def earlier(path: Path, decision: Decision) -> Iterator[dict[str, Any]]:
    """Lines of the ledger about the same question and arms on the same machine."""
    if not path.exists():
        return
    for row in read_rows(path):
        same = all(row.get(name) == getattr(decision, name) for name in ("question", "arms", "machine"))
        if same:
            yield row


def append(path: Path, decision: Decision) -> None:
    """Adds the line. Raises OverdriveError when the file cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(decision), ensure_ascii=False) + "\n")
    except OSError as error:
        raise OverdriveError(f"cannot write {path}: {error.strerror or error}") from None
