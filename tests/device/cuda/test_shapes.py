"""Laws of the shapes that steps are padded to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overdrive.device.cuda.shapes import (
    FEW_TOKENS,
    GAIN,
    ROWS,
    USUAL,
    Extent,
    Grid,
    candidates,
    refined,
    worthwhile,
)
from overdrive.types import Plan, Row, Step, Why

PLANS = (1, 2, 3, 5, 7)


def step(decoding: int, drafts: int, chunk: int = 0) -> Step:
    rows = [Row("", slot, 1, drafts, True, 100) for slot in range(decoding)]
    rows += [Row("", decoding, chunk, 0, True, 100)] if chunk else []
    return Step(0, tuple(rows), Plan(drafts, Why(rule="test")))


def timed(max_rows: int, slow: frozenset[int] = frozenset()) -> Grid:
    """On a device whose steps grow with their tokens, and take half as long again at some sizes."""
    tokens = {size * (k + 1) for k in (0, *PLANS) for size in candidates(max_rows, k + 1)}
    return refined(max_rows, PLANS, {n: n * (1.5 if n in slow else 1.0) for n in tokens})


@given(st.integers(1, 256), st.sampled_from((0, *PLANS)), st.sampled_from([0, 17, 900]), st.booleans())
def test_every_step_runs_in_a_shape_that_is_recorded_and_holds_it(rows: int, k: int, chunk: int, fine: bool) -> None:
    grid, largest = timed(256) if fine else USUAL, Extent.of(256, 2048, max(PLANS))
    one = step(rows - bool(chunk) or 1, k, chunk)
    if one.tokens > 2048:
        return
    shape = grid.of(one)
    assert shape.tokens >= one.tokens and shape.rows >= len(one.rows) and shape.drafts >= k
    assert shape in set(grid.reachable(256, 2048, PLANS))
    assert shape.tokens <= largest.tokens and shape.rows <= largest.rows and shape.queries <= largest.queries


def test_padding_is_little_where_padding_costs() -> None:
    grid = timed(256)
    for k in PLANS:
        for rows in range(FEW_TOKENS // (k + 1) + 4, min(256, 1000 // (k + 1))):
            assert grid.plain(rows, k).rows <= rows * (1 + 2 * GAIN) + 4, (rows, k)


def test_a_slow_size_is_passed_over_for_a_larger_one() -> None:
    grid = timed(256, slow=frozenset({448}))
    assert timed(256).plain(112, 3).tokens in range(448, 473)
    assert grid.plain(112, 3).tokens > 448
    assert 448 not in {shape.tokens for shape in grid.reachable(256, 2048, (3,)) if not shape.mixed}


def test_where_steps_are_short_sizes_stay_as_they_are() -> None:
    assert [size for size in timed(256).rows[4] if size * 4 <= FEW_TOKENS] == [size for size in ROWS if size <= 32]


@given(st.dictionaries(st.integers(1, 300), st.floats(0.1, 10), min_size=1))
def test_of_the_sizes_left_out_none_would_have_saved_much(seconds: dict[int, float]) -> None:
    kept = worthwhile(seconds)
    assert kept[-1] == max(seconds)
    for size, took in seconds.items():
        holds = next(other for other in kept if other >= size)
        assert seconds[holds] * (1 - GAIN) <= took + 1e-12


@pytest.mark.parametrize("most", [1, 3, 16, 100, 250, 256, 600])
def test_the_most_rows_fit(most: int) -> None:
    for grid in (USUAL, timed(most)):
        assert grid.plain(most, 3).rows <= Extent.of(most, 2048, 7).rows
