"""What the engine's EAGLE-3 drafter drafts is what the head drafts from the whole text, however often it stopped."""

from __future__ import annotations

import random

import pytest

from overdrive.draft.eagle3.choice import least_window
from tests.draft.checked import Checked, checked, head
from tests.draft.schedules import OneRow, random_schedule
from tests.loop.tiny_engine import VOCAB


@pytest.mark.parametrize("changes", [{}, {"norm_before_residual": True}, {"norm_output": True}, {"layers": 2}])
def test_drafts_are_those_of_a_head_that_read_the_whole_text(changes: dict) -> None:
    """Whatever K was, through prompt chunks, prefix-cache hits, exchanged pages, preemption and slots used again."""
    made: list[Checked] = []
    for seed in range(7):
        b, _ = random_schedule(
            random.Random(seed), lambda room: made.append(checked(room, head(**changes))) or made[-1]
        )
        b.check_conserved()
    assert sum(each.compared for each in made) > 100
    assert max(lag for each in made for lag in each.lags) > 20


def test_a_lag_beyond_the_window_costs_what_was_missed_and_nothing_else() -> None:
    made: list[Checked] = []
    for seed in range(5):
        random_schedule(random.Random(seed), lambda room: made.append(checked(room, head(), window=24)) or made[-1])
    assert sum(each.cut for each in made) > 10
    assert sum(each.fronts for each in made) > 5
    assert sum(each.compared for each in made) > 10


@pytest.mark.parametrize("chunk", [2, 5, 16])
def test_a_prompt_longer_than_the_window_is_read_whole_while_drafting(chunk: int) -> None:
    made: list[Checked] = []
    window = least_window(chunk)
    one = OneRow(lambda room: made.append(checked(room, head(), window)) or made[0], drafts=1, chunk=chunk)
    one.ask([(7 * place) % VOCAB for place in range(50)], 9)
    assert not made[0].cut
    assert made[0].compared > 3
