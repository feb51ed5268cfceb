"""What a padded EAGLE-3 drafter drafts is what the head drafts from the whole text, whatever the padding."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from overdrive.device.sampling import sample
from overdrive.draft.eagle3.network import EagleHead
from overdrive.draft.eagle3.padded import PaddedEagleDrafter
from overdrive.draft.padded import DescribedRows, PaddedDrafts, PaddedRoom
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import SamplingParams
from tests.draft.checked import from_scratch, head
from tests.draft.padded_engine import padded_bench, random_padded_schedule
from tests.draft.schedules import prompt_stream
from tests.loop.tiny_engine import VOCAB


@dataclass
class Checked:
    """A drafter whose every proposal is compared with one from scratch that misses what the drafter missed."""

    drafter: PaddedEagleDrafter
    room: PaddedRoom
    head: EagleHead
    compared: int = 0
    cut: int = 0
    lags: list[int] = field(default_factory=list)
    padded: int = 0

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        state, slots = self.room.state, self.drafter._slots
        lags = (state.computed + 1 - slots.stops)[rows.slots]
        self.drafter.propose(rows, drafts, width)
        assert drafts.counts.tolist() == rows.drafts.tolist()
        view = SimpleNamespace(state=state, sampler=sample, sampling=self.room.sampling)
        for row, (slot, cap) in enumerate(zip(rows.slots.tolist(), rows.drafts.tolist(), strict=True)):
            count, gap = min(cap, self.on_pages(slot)), tuple(slots.gaps[slot].tolist())
            if count > 0 and (gap == (0, 0) or slots.one_layer):  # more layers store what they had in view then
                assert drafts.tokens[row, :count].tolist() == from_scratch(self.head, view, slot, count, gap)
                self.compared += gap == (0, 0)
                self.cut += gap != (0, 0)
                self.lags.append(int(lags[row]))
            self.padded += slot == self.room.slots

    def on_pages(self, slot: int) -> int:
        """Drafts before which everything lies on the slot's own pages: past a request's end nothing is kept."""
        state = self.room.state
        return int((state.page_table[slot] == 0).nonzero()[0]) * state.page_size - int(state.lengths[slot]) + 1


def run_random(seed: int, head: EagleHead, window: int, longest: int) -> Checked:
    """A random schedule to its end; fails with the first proposal that is another."""
    made: list[Checked] = []
    random_padded_schedule(
        random.Random(seed),
        lambda room: made.append(Checked(PaddedEagleDrafter(head, window, room), room, head)) or made[-1],
        longest,
    )
    return made[0]


@pytest.mark.parametrize(
    ("changes", "seeds"),
    [({}, (1, 3, 5)), ({"norm_before_residual": True}, (4,)), ({"norm_output": True}, (4,)), ({"layers": 2}, (1, 3))],
)
def test_drafts_are_those_of_a_head_that_read_the_whole_text(changes: dict, seeds: tuple[int, ...]) -> None:
    """Whatever K was, through prompt chunks, prefix-cache hits, exchanged pages, preemption and slots used again."""
    runs = [run_random(seed, head(**changes), 96, longest=2 + 28 * (seed % 2)) for seed in seeds]
    assert sum(run.compared for run in runs) > 10
    assert max(lag for run in runs for lag in run.lags) > 3
    assert sum(run.padded for run in runs) > 10


def test_a_lag_beyond_the_window_costs_context_and_nothing_else() -> None:
    run = run_random(0, head(), 24, longest=30)
    assert run.cut > 10
    assert run.compared > 10


@pytest.mark.parametrize("chunk", [5, 64])
def test_a_prompt_longer_than_the_window_is_read_whole(chunk: int) -> None:
    """From the steps themselves, whatever the ring has left of them."""
    rng, made = random.Random(0), []
    b = padded_bench(
        rng,
        prompt_stream(),
        FixedDrafts(2),
        lambda room: made.append(Checked(PaddedEagleDrafter(head(), 4, room), room, head())) or made[0],
        chunk=chunk,
        max_rows=2,
    )
    for number, length in enumerate((50, 23)):
        params = SamplingParams(max_tokens=5, temperature=0.0)
        b.scheduler.submit(Request(f"r{number}", tuple((7 * at) % VOCAB for at in range(length)), params, number))
    b.run()
    assert made[0].compared > 4
    assert not made[0].cut


@pytest.mark.slow
@pytest.mark.parametrize("window", [24, 96])
@pytest.mark.parametrize("changes", [{}, {"layers": 2}])
def test_drafts_over_many_schedules(changes: dict, window: int) -> None:
    for seed in range(100, 125):
        run_random(seed, head(**changes), window, longest=random.Random(seed).choice([2, 30, 50]))
