"""What a long simulation says where nobody sees a bar."""

from __future__ import annotations

import pytest

from overdrive.bars import ProgressLines


def test_long_work_says_how_far_it_is_and_short_work_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([100.0, 100.5, 101.0, 102.0, 102.5, 104.5])
    monkeypatch.setattr("overdrive.bars.time.monotonic", lambda: next(moments))
    with ProgressLines() as lines:
        for done in range(5):
            lines.update("a world", done, 5)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "a world: 2 of 5\na world: 4 of 5\n")
