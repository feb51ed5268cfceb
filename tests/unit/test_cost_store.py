"""Costs on disk: found again for the very same key, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.cost_store import CostStore
from overdrive.policy.cost import CostTable

KEY = {"model": "tiny", "machine": "here", "device": "cpu", "threads": 2, "torch": "1.0", "drafter": "ngram"}


def table() -> CostTable:
    return CostTable([1, 4], [0, 100], [[1.0, 2.0], [3.0, 4.0]], [1, 4], [1, 3], [[0.1, 0.2], [0.3, 0.4]])


def test_a_second_start_finds_what_the_first_one_measured(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "costs")
    assert store.load(KEY) is None
    store.save(KEY, table())
    found = store.load(KEY)
    assert found is not None
    assert found.to_dict(KEY) == table().to_dict(KEY)
    assert len(list((tmp_path / "costs").iterdir())) == 1  # no half-written file stays behind


@pytest.mark.parametrize("name", KEY)
def test_costs_of_another_machine_model_or_version_are_never_used(tmp_path: Path, name: str) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, table())
    other = {**KEY, name: "other"}
    assert store.load(other) is None
    store.path(KEY).rename(store.path(other))  # nor where their file is in the place of one's own
    assert store.load(other) is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"key": {}}', "null", '{"key": 3}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    store = CostStore(tmp_path)
    store.path(KEY).write_text(content)
    assert store.load(KEY) is None
    store.save(KEY, table())
    assert store.load(KEY) is not None


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_as_good_as_none(tmp_path: Path, cut: float) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, table())
    text = store.path(KEY).read_text()
    store.path(KEY).write_text(text[: int(cut * len(text))])
    assert store.load(KEY) is None


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file in the way")
    store = CostStore(tmp_path / "costs")
    store.save(KEY, table())
    assert store.load(KEY) is None
