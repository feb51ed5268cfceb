"""Costs by K, rows and positions a row, where tokens alone do not tell."""

from __future__ import annotations

import json

import numpy as np
import pytest

from overdrive.errors import OverdriveError
from overdrive.policy.chart import chart
from overdrive.policy.cost import CostTable
from overdrive.policy.decoding import DecodeCosts

from .gears import staircase

KS = (0, 1, 3, 7)
ROWS = (1, 8, 64)
NEAR, FAR = 256, 1 << 20


def decode(dear: float = 1.0) -> DecodeCosts:
    """A row more costs 10 us, a draft of it 20 us and its drafting 200; a position of a row more the more drafts attend
    to it, `dear` times as much."""
    positions = np.array([NEAR, FAR])
    rows = np.array(ROWS)[:, None]
    rest = {k: 4e-3 + rows * (1e-5 + 2e-5 * k) + dear * rows * 1e-8 * (1 + k) * positions for k in KS}
    drafting = {k: k * (2e-4 + 1e-6 * rows) + k * rows * 1e-9 * positions for k in KS}
    return DecodeCosts(positions.tolist(), dict.fromkeys(KS, ROWS), drafting, rest)


def table(dear: float = 1.0) -> CostTable:
    stored = {name: value for name, value in staircase().to_dict({}).items() if name != "key"}
    return CostTable(**stored | {"decode": decode(dear)})


def test_one_row_with_drafts_is_another_step_than_as_many_rows_without() -> None:
    costs = table()
    assert costs.step(8, 8 * NEAR) == costs.step(costs.fed(1, 7, 7, 0), 8 * NEAR)
    assert costs.plain(1, 7, 7, NEAR) > costs.plain(8, 0, 0, 8 * NEAR)


def test_what_a_position_costs_depends_on_the_drafts_that_attend_to_it() -> None:
    costs = table()
    rise = {k: costs.plain(8, k, 8 * k, 8 * 4096) - costs.plain(8, k, 8 * k, 8 * NEAR) for k in KS}
    assert rise[7] == pytest.approx(8 * rise[0])
    assert costs.draft(7, 8, 8 * 4096) > costs.draft(7, 8, 8 * NEAR)


def test_a_k_that_was_not_measured_costs_what_its_tokens_do() -> None:
    costs = table()
    assert costs.plain(8, 5, 40, 1000) == costs.step(costs.fed(8, 5, 40, 0), 1000)
    assert costs.draft(5, 8, 1000) == staircase().draft(5, 8)


def test_a_prompt_adds_what_its_tokens_add() -> None:
    costs, plain = table(), staircase()
    added = plain.step(64 + 512, 16_384) - plain.step(64, 16_384)
    assert added > 0
    assert costs.mixed(64, 0, 0, 16_384, 512) == pytest.approx(costs.plain(64, 0, 0, 16_384) + added)
    assert costs.mixed(0, 0, 0, 0, 512) == plain.step(512, 0)


@pytest.mark.parametrize("part", ["rest", "drafting"])
def test_what_steps_take_corrects_their_k_most_and_the_others_by_what_all_share(part: str) -> None:
    costs = table()

    def seconds(k: int) -> float:
        return costs.plain(8, k, 8 * k, 8000) if part == "rest" else costs.draft(k, 8, 8000)

    before = {k: seconds(k) for k in KS if k}
    for _ in range(40):
        if part == "rest":
            costs.correct(8, 7, 56, 8000, 1.3 * before[7], 8)
        else:
            costs.correct_draft(7, 8, 8000, 1.3 * before[7], 8)
    assert seconds(7) == pytest.approx(1.3 * before[7], rel=0.05)
    assert 1.0 < seconds(1) / before[1] < 1.2
    assert seconds(3) / before[3] == pytest.approx(seconds(1) / before[1], rel=1e-3)


def test_the_first_steps_at_a_size_correct_more_than_later_ones_and_other_ks_follow_there() -> None:
    """A device gets slower as it gets hot, and by other shares at other Ks."""
    costs, others = table(), [1, 3]
    before = {k: costs.plain(64, k, 64 * k, 64_000) for k in (*others, 7)}
    few = costs.plain(1, 7, 7, 1000) / table().plain(1, 7, 7, 1000)
    for _ in range(4):
        costs.correct(64, 7, 448, 64_000, 1.2 * before[7], 8)
    assert costs.plain(64, 7, 448, 64_000) > 1.12 * before[7]
    assert all(1.02 * before[k] < costs.plain(64, k, 64 * k, 64_000) < 1.1 * before[k] for k in others)
    assert costs.plain(1, 7, 7, 1000) / table().plain(1, 7, 7, 1000) < 1.1 * few
    known = costs.plain(64, 7, 448, 64_000)
    for _ in range(40):
        costs.correct(64, 7, 448, 64_000, known, 8)
    costs.correct(64, 7, 448, 64_000, 1.2 * known, 8)
    assert costs.plain(64, 7, 448, 64_000) < 1.02 * known, "now it is known well"


def test_what_was_seen_at_one_k_moves_what_is_known_of_another_hardly() -> None:
    costs = table()
    for _ in range(40):
        costs.correct(8, 3, 24, 8000, costs.plain(8, 3, 24, 8000), 8)
    known, unknown = costs.plain(8, 3, 24, 8000), costs.plain(8, 1, 8, 8000)
    costs.correct(8, 7, 56, 8000, 1.2 * costs.plain(8, 7, 56, 8000), 8)
    assert costs.plain(8, 3, 24, 8000) / known < 1 + 0.5 * (costs.plain(8, 1, 8, 8000) / unknown - 1)


def test_a_k_that_turns_out_dearer_is_left() -> None:
    """Where tokens alone are learnt from, its neighbours would look as dear as it does."""
    costs, survival = table(), 0.9 ** np.arange(1, 8)

    def best() -> int:
        return chart(costs, [k for k in KS if k], survival.tolist(), [8], [8000])[0][0].drafts

    assert best() == 7
    taken = 1.3 * costs.plain(8, 7, 56, 8 * 8000)
    for _ in range(60):
        costs.correct(8, 7, 56, 8 * 8000, taken, 8)
    assert best() == 3


def test_what_is_stored_is_read_again() -> None:
    costs = table()
    again = CostTable.from_dict(json.loads(json.dumps(costs.to_dict({"machine": "m"}))), {"machine": "m"})
    assert again.plain(13, 3, 39, 50_000) == costs.plain(13, 3, 39, 50_000)
    assert again.draft(3, 13, 50_000) == costs.draft(3, 13, 50_000)
    assert again.as_run({3: (16,)}, True).plain(13, 3, 39, 50_000) == pytest.approx(
        costs.plain(16, 3, 48, 61_538), rel=1e-4
    )


@pytest.mark.parametrize("damage", [{"rows": {}}, {"rest": {}}, {"positions": [2, 1]}, {"drafting": {"x": []}}])
def test_damage_is_told(damage: dict) -> None:
    stored = table().to_dict({})
    stored["decode"] |= damage
    with pytest.raises(OverdriveError, match="damaged"):
        CostTable.from_dict(stored, {})


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["positions", "rows"])
def test_a_stored_table_whose_sizes_are_no_numbers_is_damaged(name: str, wrong: float) -> None:
    stored = table().to_dict({})
    if name == "positions":
        stored["decode"][name][-1] = wrong
    else:
        stored["decode"][name]["0"] = [*ROWS[:-1], wrong]
    with pytest.raises(OverdriveError, match="damaged"):
        CostTable.from_dict(stored, {})


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_no_step_takes_teach_nothing(seconds: float) -> None:
    costs, before = table(), table()
    costs.correct(8, 3, 24, 8000, seconds, 8)
    costs.correct_draft(3, 8, 8000, seconds, 8)
    assert costs.corrected() == before.corrected()


def test_what_all_sizes_share_is_shared_by_what_tokens_tell() -> None:
    """Steps with prompts are told by those, and a machine that slows down slows them too."""
    costs, plain = table(), staircase()
    for _ in range(40):
        costs.correct(8, 3, 24, 8000, 1.3 * table().plain(8, 3, 24, 8000), 8)
    ratios = {costs.step(tokens, 1000) / plain.step(tokens, 1000) for tokens in (1, 64, 2000)}
    assert max(ratios) == pytest.approx(min(ratios))
    assert 1.05 < min(ratios) < 1.3
