"""Results as JSON lines: written while they come, so that an interrupted run keeps what it has, and read back.

Lines: one `run` (what was asked, where, when), then `request` lines, a `block` line behind those of a whole block,
`note` lines, and an `end` line. A file without `end` was cut off; so were requests that no `block` line follows.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from overdrive.bench.client import Sample
from overdrive.bench.plan import Block
from overdrive.errors import OverdriveError
from overdrive.json_text import parse_json

FORMAT = 1
SAMPLE_FIELDS = {one.name for one in fields(Sample)}


@dataclass(slots=True)
class Measured:
    """A block as it was measured. Times of samples are seconds since the block began.

    counters: what the server's counters grew by. seconds: of the whole block.
    """

    arm: str
    load: float
    repeat: int
    samples: list[Sample] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Results:
    """A file of results. blocks: the whole ones. lost: requests of blocks that were not finished.

    ended: "" when the run came to its end, else why not.
    """

    run: dict[str, Any]
    blocks: list[Measured]
    notes: list[str]
    lost: int
    ended: str

    @property
    def arms(self) -> list[str]:
        """Names in the order they were given, the first one being what the others are compared with."""
        return [arm["name"] for arm in self.run["arms"]]

    @property
    def loads(self) -> list[float]:
        """The loads that were measured."""
        return sorted({block.load for block in self.blocks})


class Writer:
    """Appends lines to a new file; each is on disk when the call returns."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("x", encoding="utf-8")
        except OSError as error:
            raise OverdriveError(f"cannot write {path}: {error.strerror or error}") from None
        self.path = path

    def run(self, facts: dict[str, Any]) -> None:
        """The first line."""
        self._line("run", {"format": FORMAT, **facts})

    def note(self, text: str) -> None:
        """Something readers of the figures must know."""
        self._line("note", {"text": text})

    def request(self, block: Block, sample: Sample, began: float) -> None:
        """An answer, whole or not; began: of the block, on the sample's clock."""
        values = asdict(sample)
        values.pop("usage")
        times = {name: round(values[name] - began, 5) if values[name] else 0.0 for name in ("start", "first", "end")}
        self._line("request", {"block": block.number, **_place(block), **values, **times})

    def block(self, block: Block, seconds: float, counters: dict[str, float]) -> None:
        """All requests of the block are written."""
        self._line(
            "block", {"block": block.number, **_place(block), "seconds": round(seconds, 4), "counters": counters}
        )

    def end(self, why: str = "") -> None:
        """The last line. why: "" for a whole run, else what ended it early."""
        self._line("end", {"why": why})
        self._file.close()

    def _line(self, kind: str, values: dict[str, Any]) -> None:
        self._file.write(json.dumps({"type": kind, **values}) + "\n")
        self._file.flush()


def _place(block: Block) -> dict[str, Any]:
    return {"arm": block.arm.name, "load": block.load, "repeat": block.repeat}


def read_results(path: Path) -> Results:
    """Reads a file of `Writer`'s, also one that was cut off anywhere. Raises OverdriveError for any other file."""
    lines = _lines(path)
    if not lines or lines[0].get("type") != "run" or lines[0].get("format") != FORMAT or not lines[0].get("arms"):
        raise OverdriveError(f"{path} is not a file of results that this version of overdrive bench wrote")
    try:
        whole, lost = _blocks(lines)
        ends = [line["why"] for line in lines if line["type"] == "end"]
        notes = [line["text"] for line in lines if line["type"] == "note"]
    except (KeyError, TypeError) as error:
        raise OverdriveError(f"{path}: a line lacks what it should hold ({error!r})") from None
    return Results(lines[0], whole, notes, lost, ends[0] if ends else "the run was cut off")


def _blocks(lines: list[dict[str, Any]]) -> tuple[list[Measured], int]:
    """The whole blocks, and how many answers belong to none."""
    open_blocks: dict[int, Measured] = {}
    whole: list[Measured] = []
    for line in lines:
        if line["type"] == "request":
            measured = open_blocks.setdefault(line["block"], Measured(line["arm"], line["load"], line["repeat"]))
            measured.samples.append(Sample(**{name: line[name] for name in SAMPLE_FIELDS if name in line}))
        elif line["type"] == "block":
            measured = open_blocks.pop(line["block"])
            measured.seconds, measured.counters = line["seconds"], line["counters"]
            whole.append(measured)
    return whole, sum(len(measured.samples) for measured in open_blocks.values())


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OverdriveError(f"cannot read {path}: {getattr(error, 'strerror', '') or error}") from None
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(parse_json(text))
        except ValueError:
            if number < len(texts):
                raise OverdriveError(f"{path}, line {number}: not JSON") from None
    return [line for line in lines if isinstance(line, dict) and "type" in line]
