"""Costs as they are read from measured ones, corrected and stored."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.errors import OverdriveError
from overdrive.policy.cost import CostTable

from .gears import staircase

KEY = {"model": "tiny", "device": "cpu", "threads": 2}


def axes(least: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least, 400), min_size=1, max_size=5, unique=True).map(sorted)


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    """Of whatever a noisy machine may measure, corrected by whatever steps may take."""
    tokens, contexts, rows = draw(axes(1)), draw(axes(0)), draw(axes(1))
    ks = draw(st.sampled_from([[1], [1, 3], [2, 5]]))
    noise = np.random.default_rng(draw(st.integers(0, 99)))
    sizes = draw(st.sampled_from([{}, dict.fromkeys((0, *ks), (4, 16, 64)), {k: tuple(rows) for k in (0, *ks)}]))
    found = CostTable(
        step_tokens=tokens,
        contexts=contexts,
        step_seconds=noise.lognormal(size=(len(tokens), len(contexts))),
        draft_rows=rows,
        draft_ks=ks,
        draft_seconds=noise.lognormal(size=(len(ks), len(rows))),
        row_sizes=sizes,
        padded_to=draw(st.integers(0, 500)),
    )
    for at in noise.integers(1, 500, draw(st.integers(0, 5))).tolist():
        found.correct(at, 0, 0, at % 300, noise.lognormal())
        found.correct_draft(1 + at % 5, at, 0, noise.lognormal())
    return found


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_more_never_costs_less(table: CostTable, data: st.DataObject) -> None:
    a, b = sorted(data.draw(st.lists(st.integers(1, 900), min_size=2, max_size=2)))
    c, d = sorted(data.draw(st.lists(st.integers(0, 900), min_size=2, max_size=2)))
    assert table.step(a, c) <= table.step(b, c) * (1 + 1e-9)
    assert table.step(a, c) <= table.step(a, d) * (1 + 1e-9)
    assert table.draft(c % 16, a) <= table.draft(c % 16, b) * (1 + 1e-9)
    assert table.draft(c % 16, a) <= table.draft(max(c % 16, d % 16), a) * (1 + 1e-9)
    assert table.draft(0, a) == 0


def test_measured_sizes_are_steps_of_a_staircase_and_lines_beyond() -> None:
    table = CostTable([1, 8, 64, 128], [0, 100], [[1, 2], [2, 3], [4, 5], [6, 7]], [1], [1], [[0.5]], padded_to=60)
    assert [table.step(n, 0) for n in (1, 2, 8, 9, 64)] == [1, 2, 2, 4, 4]
    assert table.step(96, 0) == pytest.approx(5)
    assert table.step(8, 50) == pytest.approx(2.5)
    assert table.step(256, 0) > table.step(128, 0) == 6


def test_rows_are_padded_where_the_device_pads_them() -> None:
    padding, exact = (CostTable([1, 8], [0], [[1], [2]], [1], [1], [[0.5]], sizes) for sizes in ({2: (1, 4, 8)}, {}))
    assert (padding.fed(3, 2, 5, 0), exact.fed(3, 2, 5, 0)) == (12, 8)
    assert padding.fed(3, 2, 5, 100) == exact.fed(3, 2, 5, 100) == 108


def test_steps_that_take_longer_correct_their_cell_most_and_a_hiccup_hardly_anything() -> None:
    table, before = staircase(), staircase()
    table.correct(64, 0, 0, 0, 60.0)
    assert table.step(64, 0) < 1.02 * before.step(64, 0)
    for _ in range(800):
        table.correct(64, 0, 0, 0, 1.2 * before.step(64, 0))
    off = {n: table.step(n, 0) / before.step(n, 0) for n in (64, 512, 2048)}
    assert off[64] == pytest.approx(1.2, abs=0.01)
    assert off[2048] == pytest.approx(off[512])
    assert 1.05 < off[512] < off[64]
    for nothing in (0.0, -1.0):
        table.correct(64, 0, 0, 0, nothing)
    assert table.step(64, 0) == pytest.approx(1.2 * before.step(64, 0), rel=0.01)


def test_masks_cost_what_they_outlast_the_step_by_and_are_learnt() -> None:
    table = CostTable([1], [0], [[1.0]], [1], [1], [[0.5]])
    assert table.waiting(1000, 0.01) == 0
    table.correct_masks(4, 0.004)
    assert [table.waiting(masks, 0.01) for masks in (5, 10, 30)] == pytest.approx([0, 0, 0.02])
    for _ in range(400):
        table.correct_masks(10, 0.02)
    assert table.waiting(10, 0.01) == pytest.approx(0.01, rel=0.01)


def test_what_the_host_adds_to_every_step_follows_the_load() -> None:
    table = CostTable([1], [0], [[1.0]], [1], [1], [[0.5]])
    for _ in range(100):
        table.correct_between(0.004)
    assert table.between == pytest.approx(0.004, rel=0.01)


def test_nothing_hides_masks_where_steps_do_not_overlap() -> None:
    table = CostTable([1], [0], [[1.0]], [1], [1], [[0.5]]).as_run({}, overlapped=False)
    table.correct_masks(4, 0.004)
    assert table.waiting(5, 0.01) == pytest.approx(0.005)


def test_a_stored_table_comes_back_as_it_was_measured() -> None:
    table, measured = staircase(), staircase()
    table.correct(64, 0, 0, 0, 1.0)
    again = CostTable.from_dict(json.loads(json.dumps(table.to_dict(KEY))), KEY)
    for n in (1, 33, 700, 5000):
        assert again.step(n, 777) == measured.step(n, 777)
        assert again.draft(n % 9, n) == measured.draft(n % 9, n)


@pytest.mark.parametrize("other", [{**KEY, "threads": 8}, {"model": "tiny", "device": "cpu"}])
def test_a_table_of_another_machine_is_refused_by_name(other: dict) -> None:
    with pytest.raises(OverdriveError, match="threads"):
        CostTable.from_dict(staircase().to_dict(KEY), other)


@pytest.mark.parametrize(
    "damage",
    [
        {"step_seconds": []},
        {"contexts": [5, 5, 6]},
        {"unknown": 1},
        {"key": 3},
        {"padded_to": "x"},
        {"draft_ks": None},
        {"row_sizes": [1]},
    ],
)
def test_a_damaged_table_is_refused(damage: dict) -> None:
    with pytest.raises(OverdriveError, match="stored cost table"):
        CostTable.from_dict({**staircase().to_dict(KEY), **damage}, KEY)


def test_costs_that_are_no_costs_are_refused() -> None:
    for bad in (np.nan, -1.0, np.inf):
        with pytest.raises(ValueError, match="costs"):
            CostTable([1], [0], [[bad]], [1], [1], [[1.0]])
