"""A small-model drafter whose every proposal is compared with one from the whole text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout, sample
from overdrive.draft import Drafts, Room
from overdrive.draft.small import SmallModelDrafter
from overdrive.model.transformer import Hidden, Transformer
from tests.loop.tiny_drafters import small_model
from tests.model.paged import paged_logits

from .schedules import Seen


class Watched(SmallModelDrafter):
    """Compares every proposal with one from the whole text, and notes what the model is fed."""

    def __init__(self, model: Transformer, room: Room, seen: Seen) -> None:
        kv = PagedKV.allocate(model.config, room.n_pages, room.state.page_size, model.dtype)
        forward = room.device.forward(model, kv)

        def noting(batch: Batch) -> Hidden:
            seen.fed.append(len(batch.ids))
            return forward(batch)

        super().__init__(model, noting, room.n_pages, room.state, room.sampling, room.sampler)
        self._room = room
        self._seen = seen

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        lags = [self.lag(slot) for slot in slots.tolist()]
        drafts = super().propose(slots, caps, width)
        assert drafts.counts.tolist() == caps.tolist()
        for row, (slot, cap) in enumerate(zip(slots.tolist(), caps.tolist(), strict=True)):
            assert not drafts.tokens[row, cap:].any()
            if cap and self._has_pages(slot, cap):
                self._seen.lags.append(lags[row])
                assert drafts.tokens[row, :cap].tolist() == self._from_scratch(slot, drafts.tokens[row, :cap])
        return drafts

    def _has_pages(self, slot: int, cap: int) -> bool:
        """Rows past their request's end may write to the scratch page, and nobody keeps what they draft."""
        last = int(self._room.state.lengths[slot]) + cap - 2
        return int(self._room.state.page_table[slot, last // self._room.state.page_size]) > 0

    def _from_scratch(self, slot: int, guesses: Tensor) -> list[int]:
        """What the model draws behind the text, and behind each guess if all before it are right."""
        cap, length = len(guesses), int(self._room.state.lengths[slot])
        text = self._room.state.history[slot, :length].tolist() + guesses[:-1].tolist()
        logits = paged_logits(self._model, [text], page_size=256)[0][length - 1 :]
        depths, rows = torch.arange(cap), torch.zeros(cap, dtype=torch.int64)
        layout = Layout(rows, torch.full_like(rows, slot), depths, length + depths)
        return sample(logits, layout, guesses.unsqueeze(0), self._room.sampling).tolist()


def watched(seen: Seen, model: Transformer | None = None) -> Callable[[Room], SmallModelDrafter]:
    return lambda room: Watched(model or small_model(), room, seen)
