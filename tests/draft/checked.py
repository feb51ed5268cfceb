"""An EAGLE-3 drafter whose every proposal is compared with one made from the whole text, without pages or a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout
from overdrive.draft.base import Drafts, Fed
from overdrive.draft.eagle3.choice import EagleChoice
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.drafter import EagleDrafter
from overdrive.draft.eagle3.loading import random_head
from overdrive.draft.eagle3.network import EagleHead
from overdrive.draft.room import Room
from overdrive.model.forms import torch_form
from overdrive.types import PageEntry
from tests.loop.tiny_engine import VOCAB, tiny

Gap = tuple[int, int]


def head(**changes) -> EagleHead:
    config = HeadConfig.for_target(tiny().config, draft_vocab=40, taps=(0, 1, 2), **changes)
    return random_head(config, torch_form("float64", torch.device("cpu")), tiny(), seed=3)


def flat_batch(ids: Sequence[int], positions: Tensor, start: int, gap: Gap = (0, 0)) -> Batch:
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
        starts=torch.tensor([start]),
        gaps=torch.tensor([gap]),
    )


def from_scratch(head: EagleHead, room: Room, slot: int, count: int, gap: Gap) -> list[int]:
    """`count` drafts after what `slot` holds, by its own sampling rules, from passes over the whole text.

    gap: places that the head does not see from behind them.
    """
    target, length = tiny(), int(room.state.lengths[slot])
    tokens = room.state.history[slot, :length].tolist()
    kv = PagedKV.allocate(target.config, 2, 256, torch.float64)
    batch = flat_batch(tokens[:-1], torch.arange(length - 1), 0)
    taps = target.forward(batch, ReferenceAttention(kv, batch, target.config), head.config.taps).taps
    own = PagedKV.allocate(head.config, 2, 256, torch.float64)
    features, following = head.fuse(taps), tokens[1:]
    for begin, end, seen in ((1, gap[1], (0, 0)), (max(1, gap[1]), length, gap)):
        if begin < end:
            batch = flat_batch(following[begin - 1 : end - 1], torch.arange(begin, end), 1, seen)
            attention = ReferenceAttention(own, batch, head.config)
            hidden = head.forward(features[begin - 1 : end - 1], batch.ids, batch.positions, attention)
    drafts = torch.zeros((1, count), dtype=torch.int64)
    for j in range(count):
        scores = torch.full((1, VOCAB), -torch.inf, dtype=torch.float64)
        scores[:, head.target_ids] = head.logits(hidden.normed[-1:])
        layout = Layout(*(torch.tensor([value]) for value in (0, slot, j, length + j)))
        drafts[:, j] = room.sampler(scores, layout, drafts, room.sampling)
        batch = flat_batch(drafts[0, j : j + 1].tolist(), torch.tensor([length + j]), 1, gap)
        attention = ReferenceAttention(own, batch, head.config)
        hidden = head.forward(hidden.feedback[-1:].clone(), batch.ids, batch.positions, attention)
    return drafts[0].tolist()


@dataclass
class Checked:
    """A drafter whose every proposal is compared with one from scratch that misses what the drafter missed.

    compared: proposals that missed nothing. cut: those that missed something. fronts: of them, those that saw what
    stands before it. lags: pairs that were lacking, by proposal.
    """

    drafter: EagleDrafter
    room: Room
    head: EagleHead
    compared: int = 0
    cut: int = 0
    fronts: int = 0
    lags: list[int] = field(default_factory=list)

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        self.lags += [self.drafter.lag(slot) for slot, cap in zip(slots.tolist(), caps.tolist(), strict=True) if cap]
        drafts = self.drafter.propose(slots, caps, width)
        for row, (slot, cap) in enumerate(zip(slots.tolist(), caps.tolist(), strict=True)):
            count = min(cap, self.on_pages(slot))
            gap = tuple(self.drafter._reading.gaps[slot].tolist())
            if count > 0:
                assert drafts.tokens[row, :count].tolist() == from_scratch(self.head, self.room, slot, count, gap)
                self.compared += gap == (0, 0)
                self.cut += gap != (0, 0)
                self.fronts += gap[0] > 1
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
