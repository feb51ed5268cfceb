"""The trace file: what a viewer finds in it, whenever the process ended."""

from __future__ import annotations

import errno
import io
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from overdrive.device.stream import InlineStream
from overdrive.errors import OverdriveError
from overdrive.loop import Turn
from overdrive.policy.controller import FixedDrafts
from overdrive.trace import Trace
from tests.loop.test_engine_laws import random_requests
from tests.loop.tiny_drafters import ngram
from tests.loop.tiny_engine import tiny_bench


def traced(path: Path) -> tuple[Trace, list[Turn]]:
    """A trace, and the steps that were told to it."""
    trace, turns = Trace(path), []
    b = tiny_bench(InlineStream(), FixedDrafts(3), ngram, watches=(trace.add, turns.append))
    for request in random_requests(random.Random(3), 4):
        b.scheduler.submit(request)
    b.run()
    return trace, turns


def test_every_step_is_in_the_trace_with_its_plan_and_reason(tmp_path: Path) -> None:
    trace, turns = traced(tmp_path / "trace.json")
    trace.close()
    events = json.loads((tmp_path / "trace.json").read_text())
    plans = [event["args"] for event in events if event["name"] == "schedule"]
    assert [plan["step"] for plan in plans] == [turn.step.number for turn in turns]
    assert {plan["why"]["rule"] for plan in plans} == {"fixed"}
    assert {plan["drafts"] for plan in plans} == {3}


def test_spans_follow_each_other_on_every_track(tmp_path: Path) -> None:
    trace, _ = traced(tmp_path / "trace.json")
    trace.close()
    spans = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event["ph"] == "X"]
    for track in (1, 2):
        mine = sorted((span["ts"], span["ts"] + span["dur"]) for span in spans if span["tid"] == track)
        assert len(mine) > 10
        assert all(end <= begin + 0.3 for (_, end), (begin, _) in pairwise(mine))  # times are rounded to 0.1


def test_a_trace_that_was_cut_off_lacks_its_bracket_alone(tmp_path: Path) -> None:
    _, turns = traced(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text() + "]")
    assert sum(event["name"] == "settle" for event in events) == len(turns)


def test_a_file_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OverdriveError, match="--trace"):
        Trace(tmp_path)


class Full(io.StringIO):
    """A file on a disk that has room for so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def flush(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_the_trace_and_no_answer(tmp_path: Path, monkeypatch, caplog) -> None:
    trace, turns = traced(tmp_path / "trace.json")
    monkeypatch.setattr(trace, "_file", Full(3))
    for turn in turns:
        trace.add(turn)
    trace.close()
    last = turns[3].step.number
    assert [record.getMessage() for record in caplog.records] == [
        f"the trace ends with step {last}: No space left on device"
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full is simulated by Linux")
def test_a_disk_that_is_full_from_the_beginning_is_told_in_one_line() -> None:
    with pytest.raises(OverdriveError, match="--trace: cannot write"):
        Trace(Path("/dev/full"))
