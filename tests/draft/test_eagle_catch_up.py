"""What the engine's EAGLE-3 drafter drafts is what the head drafts from the whole text, however often it stopped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout
from overdrive.draft.base import Drafts, Fed
from overdrive.draft.eagle3.choice import EagleChoice, least_window
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.drafter import EagleDrafter
from overdrive.draft.eagle3.loading import random_head
from overdrive.draft.eagle3.network import EagleHead
from overdrive.draft.room import Room
from overdrive.model.forms import torch_form
from overdrive.types import PageEntry
from tests.draft.schedules import OneRow, random_schedule
from tests.loop.tiny_engine import VOCAB, tiny


def head(**changes) -> EagleHead:
    config = HeadConfig.for_target(tiny().config, draft_vocab=40, taps=(0, 1, 2), **changes)
    return random_head(config, torch_form("float64", torch.device("cpu")), tiny(), seed=3)


def flat_batch(ids: Sequence[int], positions: Tensor, starts: int) -> Batch:
    """One row in one long page."""
    count = len(ids)
    return Batch(
        ids=torch.tensor(ids),
        positions=positions,
        rows=torch.zeros(count, dtype=torch.int64),
        offsets=torch.tensor([0, count]),
        page_table=torch.tensor([[1]], dtype=torch.int32),
        writes=256 + positions,
        wanted=torch.arange(count),
        starts=torch.tensor([starts]),
        gaps=torch.tensor([[0, 0]]),
    )


def from_scratch(head: EagleHead, room: Room, slot: int, count: int, starts: int = 1) -> list[int]:
    """`count` drafts after what `slot` holds, by its own sampling rules, from passes over the whole text.

    starts: the first place that the head sees.
    """
    target, length = tiny(), int(room.state.lengths[slot])
    tokens = room.state.history[slot, :length].tolist()
    kv = PagedKV.allocate(target.config, 2, 256, torch.float64)
    batch = flat_batch(tokens[:-1], torch.arange(length - 1), 0)
    taps = target.forward(batch, ReferenceAttention(kv, batch, target.config), head.config.taps).taps
    own = PagedKV.allocate(head.config, 2, 256, torch.float64)
    batch = flat_batch(tokens[1:], torch.arange(1, length), starts)
    hidden = head.forward(head.fuse(taps), batch.ids, batch.positions, ReferenceAttention(own, batch, head.config))
    drafts = torch.zeros((1, count), dtype=torch.int64)
    for j in range(count):
        scores = torch.full((1, VOCAB), -torch.inf, dtype=torch.float64)
        scores[:, head.target_ids] = head.logits(hidden.normed[-1:])
        layout = Layout(*(torch.tensor([value]) for value in (0, slot, j, length + j)))
        drafts[:, j] = room.sampler(scores, layout, drafts, room.sampling)
        batch = flat_batch(drafts[0, j : j + 1].tolist(), torch.tensor([length + j]), starts)
        attention = ReferenceAttention(own, batch, head.config)
        hidden = head.forward(hidden.feedback[-1:].clone(), batch.ids, batch.positions, attention)
    return drafts[0].tolist()


@dataclass
class Checked:
    """A drafter whose every proposal is compared with one from scratch, behind the place where its window was cut."""

    drafter: EagleDrafter
    room: Room
    head: EagleHead
    compared: int = 0
    cut: int = 0
    lags: list[int] = field(default_factory=list)

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        self.lags += [self.drafter.lag(slot) for slot, cap in zip(slots.tolist(), caps.tolist(), strict=True) if cap]
        drafts = self.drafter.propose(slots, caps, width)
        for row, (slot, cap) in enumerate(zip(slots.tolist(), caps.tolist(), strict=True)):
            count = min(cap, self.on_pages(slot))
            starts = int(self.drafter._starts[slot])
            if count > 0:
                assert drafts.tokens[row, :count].tolist() == from_scratch(self.head, self.room, slot, count, starts)
                self.compared += starts == 1
                self.cut += starts > 1
            assert not drafts.tokens[row, cap:].any()
        return drafts

    def on_pages(self, slot: int) -> int:
        """Drafts before which everything lies on the slot's own pages: past a request's end nothing is kept."""
        state = self.room.state
        return int((state.page_table[slot] == 0).nonzero()[0]) * state.page_size - int(state.lengths[slot]) + 1

    def absorb(self, fed: Fed) -> None:
        self.drafter.absorb(fed)

    def enter(self, entry: PageEntry) -> None:
        self.drafter.enter(entry)


def checked(room: Room, head: EagleHead, window: int = 96) -> Checked:
    return Checked(EagleChoice(head, Path("tiny"), window, torch.float64).open(room), room, head)


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


def test_a_lag_beyond_the_window_costs_context_and_nothing_else() -> None:
    made: list[Checked] = []
    for seed in range(5):
        random_schedule(random.Random(seed), lambda room: made.append(checked(room, head(), window=24)) or made[-1])
    assert sum(each.cut for each in made) > 10
    assert sum(each.compared for each in made) > 10


@pytest.mark.parametrize("chunk", [2, 5, 16])
def test_a_prompt_longer_than_the_window_is_read_whole_while_drafting(chunk: int) -> None:
    made: list[Checked] = []
    window = least_window(chunk)
    one = OneRow(lambda room: made.append(checked(room, head(), window)) or made[0], drafts=1, chunk=chunk)
    one.ask([(7 * place) % VOCAB for place in range(50)], 9)
    assert not made[0].cut
    assert made[0].compared > 3
