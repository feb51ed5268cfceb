"""Costs over two axes that steps correct for hours: what they say stays what steps take, and nothing else moves."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from overdrive.policy.cost import CostTable
from overdrive.policy.decoding import DecodeCosts
from overdrive.policy.surface import Surface

from .gears import staircase

ROWS, POSITIONS = (1, 2, 4, 8, 16, 32, 64), (256, 4096)
FLAT = np.array([5.0, 5.0, 5.0, 5.0, 5.1, 6.0, 8.0])[:, None] * np.array([1.0, 1.1]) * 1e-3
Taken = dict[tuple[int, int], float]
"""Seconds of steps, by rows and positions a row."""


def surface(worth: float = 16.0) -> Surface:
    return Surface(ROWS, POSITIONS, FLAT, worth)


def serve(costs: Surface, taken: Taken, corrections: int) -> None:
    """Steps of these sizes in turn, eight to a correction."""
    points = list(taken)
    for number in range(corrections):
        point = points[number % len(points)]
        costs.correct(*point, taken[point] / costs.at(*point), 8)


@pytest.mark.parametrize("worth", [16.0, inf])
@pytest.mark.parametrize(
    "off",
    [
        {(4, 300): 1.02, (16, 300): 0.97},  # the larger one takes less, as another tiling of a kernel makes it
        {(4, 256): 1.02, (8, 256): 1.0, (16, 256): 0.97},
        {(1, 300): 1.03, (6, 300): 0.99, (11, 300): 0.97, (16, 300): 1.0},  # between points it is no straight line
        {(8, 256): 1.02, (8, 4096): 0.9},
    ],
)
def test_sizes_that_deviate_for_good_move_no_size_that_no_step_teaches(off: Taken, worth: float) -> None:
    """Half an hour of steps: shares of the same deviations, again and again, must add up to nothing."""
    costs, fresh = surface(worth), surface()
    taken = {point: share * fresh.at(*point) for point, share in off.items()}
    serve(costs, taken, 200)
    early = costs.corrected
    serve(costs, taken, 20_000)
    assert np.abs(costs.corrected / early - 1).max() < 0.02
    assert np.abs(costs.corrected / fresh.corrected - 1).max() < 0.1
    for point, seconds in taken.items():
        assert costs.at(*point) == pytest.approx(seconds, rel=0.08)


def test_a_size_that_was_levelled_for_long_rises_as_soon_as_it_takes_longer() -> None:
    costs = surface()
    serve(costs, {(4, 256): 5.1e-3, (8, 256): 5.0e-3}, 10_000)
    assert costs.at(4, 256) == pytest.approx(costs.at(8, 256), rel=1e-3)
    serve(costs, {(4, 256): 5.1e-3, (8, 256): 6.0e-3}, 200)
    assert costs.at(8, 256) == pytest.approx(6.0e-3, rel=0.03)
    assert costs.at(4, 256) == pytest.approx(5.1e-3, rel=0.03)


def test_a_k_that_never_runs_costs_in_an_hour_what_it_did() -> None:
    """Nor do steps with prompts. What K = 0 costs is needed at once when the load changes."""

    def table() -> CostTable:
        stored = {name: value for name, value in staircase().to_dict({}).items() if name != "key"}
        rest = {k: FLAT * (1 + 0.05 * k) for k in (0, 3)}
        drafting = {k: FLAT * 0.1 * k for k in rest}
        return CostTable(**stored | {"decode": DecodeCosts(POSITIONS, dict.fromkeys(rest, ROWS), drafting, rest)})

    costs, fresh = table(), table()
    off = {1: 1.03, 6: 0.99, 11: 0.97, 16: 1.0}
    taken = {rows: share * fresh.plain(rows, 3, 3 * rows, 300 * rows) for rows, share in off.items()}
    for number in range(50_000):
        rows = list(taken)[number % len(taken)]
        costs.correct(rows, 3, 3 * rows, 300 * rows, taken[rows], 8)
    for rows in (1, 8, 64):
        assert costs.plain(rows, 0, 0, 300 * rows) == pytest.approx(fresh.plain(rows, 0, 0, 300 * rows), rel=0.05)
    assert costs.step(512, 0) == pytest.approx(fresh.step(512, 0), rel=0.05)
