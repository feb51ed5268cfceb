"""A head that has missed a piece of a text sees all that it read before and behind it, and nothing of the piece."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from overdrive.draft.base import Drafts
from overdrive.draft.eagle3.choice import EagleChoice
from overdrive.draft.eagle3.reading import FIRST, Reading
from overdrive.draft.room import Room
from overdrive.request import Request
from overdrive.types import SamplingParams
from tests.draft.checked import Checked, Gap, checked, head
from tests.draft.schedules import OneRow, prompt_stream
from tests.loop.bench import StopAndGo
from tests.loop.tiny_engine import MAX_MODEL_LEN, VOCAB, tiny_bench

CHUNK, WINDOW = 8, 9


def seen(reading: Reading, slot: int) -> set[int]:
    return set(range(FIRST, reading.stops[slot])) - set(range(*reading.gaps[slot]))


def test_what_is_seen_is_what_stands_before_and_behind_all_that_is_missing() -> None:
    """Against sets of places, over random stories of reading, losing and beginning anew."""
    rng, pieces = random.Random(0), 0
    reading = Reading(3)
    for _ in range(2000):
        slot, missing = rng.randrange(3), set()
        front, more = 4 * rng.randrange(4), 4 * rng.randrange(4)
        reading.begin(slot, front, front + more, front + more + 4 * rng.randrange(3))
        missing |= set(range(max(FIRST, front), front + more))
        for _ in range(rng.randrange(5)):
            stop = int(reading.stops[slot])
            if rng.random() < 0.5:
                reading.stops[slot] += rng.randrange(9)
            elif rng.random() < 0.7:
                oldest = stop + rng.randint(-5, 9)
                reading.skip_lost(np.array([slot]), np.array([oldest]))
                missing |= set(range(stop, oldest))
            else:
                begin = 4 * rng.randint(0, stop // 4)
                reading.lose(slot, begin, begin + 4)
                missing |= set(range(max(FIRST, begin), begin + 4))
        read, ends = set(range(FIRST, reading.stops[slot])), sorted(missing)
        assert seen(reading, slot) == {p for p in read if not missing or p < ends[0] or p > ends[-1]}
        begin = rng.randrange(20)
        assert reading.stands(slot, begin, begin + 4) == (
            set(range(max(FIRST, begin), begin + 4)) <= seen(reading, slot)
        )
        pieces += reading.gaps[slot, 0] > FIRST
    assert pieces > 300


@dataclass
class Followed(Checked):
    """The drafter of one row without shared pages: what it misses follows from when it was asked.

    read: the place of the next pair, at first that behind the prompt, which is read at once. ends: of all gaps so far.
    """

    read: int = FIRST
    missed: Gap = (0, 0)
    ends: set[int] = field(default_factory=set)

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        if caps.any():
            computed = int(self.room.state.computed[slots])
            oldest = computed - WINDOW + 1
            if self.read < oldest:
                self.missed = self.missed[0] or self.read, oldest
                self.ends.add(oldest)
            self.read = computed + 1
        drafts = super().propose(slots, caps, width)
        assert tuple(self.drafter._reading.gaps[int(slots)].tolist()) == self.missed
        return drafts


def test_after_a_pause_beyond_the_window_all_is_seen_but_what_was_missed() -> None:
    """The window's pairs are seen to the last one, and those before the first pause; drafts are exactly those."""
    made: list[Followed] = []
    for seed in range(3):
        rng = random.Random(seed)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(2, CHUNK))]

        def follow(room: Room, length: int = len(prompt)) -> Followed:
            drafter = EagleChoice(head(), Path("tiny"), WINDOW, torch.float64).open(room)
            made.append(Followed(drafter, room, head(), read=length))
            return made[-1]

        b = tiny_bench(
            prompt_stream(), StopAndGo(rng, longest=40), follow, lookahead=0, max_rows=1, cached=False, chunk=CHUNK
        )
        params = SamplingParams(max_tokens=MAX_MODEL_LEN - len(prompt), temperature=0.0)
        b.scheduler.submit(Request("r", tuple(prompt), params, 0))
        b.run()
        assert len(b.answers["r"]) == params.max_tokens
    assert sum(each.fronts for each in made) > 20
    assert max(len(each.ends) for each in made) > 1


def test_a_turn_that_finds_pages_unread_sees_those_before_them() -> None:
    """An answer without drafts leaves pages that the head has not read: the next turn's head sees the first turn's."""
    made: list[Checked] = []
    one = OneRow(lambda room: made.append(checked(room, head(), WINDOW)) or made[0], drafts=2, chunk=CHUNK)
    first = [(7 * place) % VOCAB for place in range(13)]
    one.lever.drafts = 0
    answer = one.ask(first, 30)
    one.lever.drafts = 2
    turn = one.ask([*first, *answer.output, 5, 6], 8)
    assert turn.cached_tokens == 40
    assert made[0].fronts > 3
    assert made[0].drafter._reading.gaps.tolist() == [[12, 40]]
