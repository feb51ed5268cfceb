"""Speculation by hand: what is asked for decides, and the gear box behind it neither learns nor forgets."""

from __future__ import annotations

import pytest

from overdrive.errors import BadRequest
from overdrive.policy.lever import Lever, fixed_by

from .gears import MOST, PLANS, Machine, gearbox, steady


def test_what_is_asked_for_decides() -> None:
    lever = Lever(gearbox(), "auto", MOST)
    machine, one = Machine(lever), steady(1)
    assert set(machine.run(300, one, 0.9)[-20:]) == {MOST}
    for setting, k in (("fixed:2", 2), ("off", 0), ("fixed:0", 0), ("fixed:4", 4)):
        lever.shift(setting)
        assert lever.setting == setting
        assert machine.run(20, one, 0.9) == [k] * 20
    lever.shift("auto")
    assert (set(machine.run(20, one, 0.9)), lever.setting) == ({MOST}, "auto")
    assert tuple(lever.plans) == PLANS


def test_the_gear_box_learns_nothing_while_it_does_not_decide() -> None:
    """So arms that take turns on one engine stay apart: drafts that turned bad meanwhile are news to it."""
    box = gearbox()
    lever = Lever(box, "auto", MOST)
    machine, view = Machine(lever), steady(4)
    machine.run(300, view, 0.9)
    prospects, costs = box.prospects(view), box.costs.corrected()
    lever.shift("fixed:5")
    machine.run(300, view, 0.0)
    assert (box.prospects(view), box.costs.corrected()) == (prospects, costs)
    lever.shift("auto")
    assert set(machine.run(300, view, 0.0)[-100:]) <= {0, 1}  # what it sees itself it learns


def test_rows_that_others_drafted_for_lack_nothing() -> None:
    box = gearbox()
    lever = Lever(box, "auto", MOST)
    machine = Machine(lever)
    machine.run(100, lambda step: steady(8, context=500 + step), 0.0)
    lever.shift("fixed:3")
    machine.run(30, lambda step: steady(8, context=600 + 4 * step), 1.0)
    assert box._catch_up.seconds(8) == 0
    lever.shift("off")
    machine.run(30, lambda step: steady(8, context=720 + step), 1.0)
    assert box._catch_up.seconds(8) > 0


@pytest.mark.parametrize("setting", ["", "auto", "max:3", "fixed:8", "fixed:-1", "fixed:²", "x" * 5000])
def test_what_cannot_be_asked_for_is_refused_and_changes_nothing(setting: str) -> None:
    lever = Lever(gearbox(), "max:7", MOST)
    lever.shift("fixed:1")
    with pytest.raises(BadRequest, match="one of max:7, off, fixed:K with K up to 7") as refused:
        lever.shift(setting)
    assert len(str(refused.value)) < 120
    assert lever.setting == "fixed:1"
    assert set(Machine(lever).run(5, steady(1), 1.0)) == {1}


def test_an_engine_without_drafter_can_only_be_off() -> None:
    assert fixed_by("off", "off", 0) is None
    assert fixed_by("fixed:0", "off", 0) == 0
    with pytest.raises(BadRequest):
        fixed_by("fixed:1", "off", 0)
