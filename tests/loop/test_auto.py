"""`--speculation auto` from options to answers, on a real model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions, SchedulerOptions
from overdrive.engine import Engine, build
from overdrive.types import SamplingParams


def engine(speculation: str, labels: list[str]) -> Engine:
    options = EngineOptions(
        model=ModelOptions(max_model_len=768),
        memory=MemoryOptions(kv_tokens=4096),
        scheduler=SchedulerOptions(max_rows=4),
        draft=DraftOptions(draft="ngram", speculation=speculation),
    )
    return build("smollm2", options, lambda label, done, total: labels.append(label))


def texts(one: Engine) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number in range(3):
        one.submit(f"r{number}", [1, 504, 260 + number] * 8, SamplingParams(max_tokens=24, temperature=0.0))
    while not one.idle:
        for delta in one.advance():
            found.setdefault(delta.request.id, []).extend(delta.tokens)
    return found


@pytest.mark.smollm2
def test_auto_measures_once_and_answers_as_every_other_setting(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("overdrive.gears.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("overdrive.device.costs.Measured.doubt", lambda *_: "")  # however busy this machine is
    found, origins, labels = [], [], []
    for speculation in ("off", "auto", "auto"):
        labels.append([])
        one = engine(speculation, labels[-1])
        origins.append(one.info.costs.get("origin"))
        assert msgspec.json.decode(msgspec.json.encode(one.info))["speculation"] == speculation
        assert one.stats().pages_used == one.stats().pages_cached == 0
        found.append(texts(one))
        rules = one.stats().planning.rules
        one.close()
        assert ("gear" in rules) == (speculation == "auto")
    assert origins == [None, "measured", "stored"]
    assert ["costs" in seen for seen in labels] == [False, True, False]
    assert found[0] == found[1] == found[2]
