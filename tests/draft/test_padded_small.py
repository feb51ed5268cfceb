"""What a padded small-model drafter drafts is what the model says of the whole text, whatever the padding."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from overdrive.device.sampling import Layout, sample
from overdrive.draft.composite import PaddedComposite
from overdrive.draft.copies import PaddedNgramDrafter
from overdrive.draft.padded import DescribedRows, PaddedDrafts, PaddedRoom
from overdrive.draft.padded_small import PaddedSmallDrafter
from overdrive.draft.small import SmallModelChoice
from overdrive.errors import OverdriveError
from tests.draft.padded_engine import padded_bench, random_padded_schedule
from tests.loop.tiny_drafters import small_model
from tests.model.paged import paged_logits


@dataclass
class Checked:
    """A drafter whose every proposal is compared with one from the whole text. lags: tokens that were lacking."""

    drafter: PaddedSmallDrafter
    room: PaddedRoom
    compared: int = 0
    lags: list[int] = field(default_factory=list)

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def catch_up(self, step) -> None:
        state = self.room.state
        drafting = [row.slot for row in step.rows if row.drafts]
        self.lags += (state.computed + 1 - self.drafter._slots.stops)[drafting].tolist()
        self.drafter.catch_up(step)

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        self.drafter.propose(rows, drafts, width)
        assert drafts.counts.tolist() == rows.drafts.tolist()
        for row, (slot, cap) in enumerate(zip(rows.slots.tolist(), rows.drafts.tolist(), strict=True)):
            lost = self.drafter._slots.gaps[slot].any()
            if cap and not lost and self.has_pages(slot, cap):
                assert drafts.tokens[row, :cap].tolist() == self.from_scratch(slot, drafts.tokens[row, :cap])
                self.compared += 1

    def has_pages(self, slot: int, cap: int) -> bool:
        """Rows past their request's end may write to the scratch page, and nobody keeps what they draft."""
        state = self.room.state
        return int(state.page_table[slot, (int(state.lengths[slot]) + cap - 2) // state.page_size]) > 0

    def from_scratch(self, slot: int, guesses: torch.Tensor) -> list[int]:
        """What the model draws behind the text, and behind each guess if all before it are right."""
        cap, length = len(guesses), int(self.room.state.lengths[slot])
        text = self.room.state.history[slot, :length].tolist() + guesses[:-1].tolist()
        logits = paged_logits(small_model(), [text], page_size=256)[0][length - 1 :]
        depths, rows = torch.arange(cap), torch.zeros(cap, dtype=torch.int64)
        layout = Layout(rows, torch.full_like(rows, slot), depths, length + depths)
        return sample(logits, layout, guesses.unsqueeze(0), self.room.sampling).tolist()


def run_random(seed: int, longest: int, copied: bool = False) -> Checked:
    made: list[Checked] = []

    def make(room: PaddedRoom):
        made.append(Checked(PaddedSmallDrafter(small_model(), room), room))
        return PaddedComposite(PaddedNgramDrafter(room.state, 2), made[0]) if copied else made[0]

    random_padded_schedule(random.Random(seed), make, longest)
    return made[0]


def test_drafts_are_those_of_a_model_that_read_the_whole_text() -> None:
    runs = [run_random(seed, 2 + 28 * (seed % 2), copied=seed == 4) for seed in (1, 2, 4, 5)]
    assert sum(run.compared for run in runs) > 60
    assert max(lag for run in runs for lag in run.lags) > 16, "more than a proposal reads"


@pytest.mark.slow
def test_drafts_over_many_schedules() -> None:
    for seed in range(100, 150):
        run_random(seed, random.Random(seed).choice([2, 30, 50]), copied=seed % 5 == 0)


def test_a_server_of_longer_texts_is_refused() -> None:
    choice = SmallModelChoice(small_model(), "./small")
    longer = small_model().max_model_len + 1
    with pytest.raises(OverdriveError, match=rf"\./small takes {longer - 1} positions, the server {longer}"):
        padded_bench(random.Random(0), None, None, choice.open_padded, max_model_len=longer)
