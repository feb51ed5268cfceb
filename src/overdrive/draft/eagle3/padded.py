"""EAGLE-3 drafts in static shapes: what `EagleDrafter` drafts, with all that it knows of slots on the device.

What is read when, and where pairs stand, is told in `drafter`. Here the host has bounds alone (`LagBounds`): it chooses
how many pairs of each row a proposal has room for, and the device finds out which there are.
Source: Li et al. 2025, EAGLE-3; the catch-up is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.cuda.store import store
from overdrive.draft.eagle3 import steps
from overdrive.draft.eagle3.network import EagleHead, HeadScored
from overdrive.draft.eagle3.slots import FIRST, HeadSlots
from overdrive.draft.eagle3.steps import Fed, Pairs, Wanted, begin, take_along
from overdrive.draft.exchanges import PageMirror, rounds
from overdrive.draft.lags import WIDTHS, LagBounds, feeds_prompt
from overdrive.draft.padded import DescribedRows, PaddedDrafts, PaddedRoom
from overdrive.draft.padded_rows import RowNumbers, padded_passes
from overdrive.draft.uploads import upload
from overdrive.types import Step


def steps_for(device: torch.device) -> ModuleType:
    """What a head does around its passes: `step_kernels` on a GPU, which alone has Triton, else `steps`."""
    if device.type != "cuda":
        return steps
    from overdrive.draft.eagle3 import step_kernels

    return step_kernels


class PaddedEagleDrafter:
    """K drafts per row from an EAGLE-3 head. `PaddedDrafter`.

    window: newest positions of a slot whose taps are kept.
    """

    sources = ("eagle3",)
    widths = WIDTHS

    def __init__(self, head: EagleHead, window: int, room: PaddedRoom) -> None:
        state, config, device = room.state, head.config, room.device
        self.taps = config.taps
        self._head = head
        self._room = room
        self._state = state
        self._kv = PagedKV.allocate(config, room.n_pages, state.page_size, head.dtype, device)
        width = len(config.taps) * config.target_hidden
        slots = room.slots + 1
        self._slots = HeadSlots.allocate(state, window, room.n_pages, width, config.layers == 1, head.dtype)
        self._steps = steps_for(device)
        self._lags = LagBounds(slots, window)
        self._pages = PageMirror(slots, state.page_table.shape[1], room.n_pages)
        self._numbers = RowNumbers(slots, FIRST, device)

    def enter(self, step: Step) -> None:
        """What the head stored of slots in pages that are exchanged goes along."""
        for exchanges in rounds(self._pages.enter(step)):
            table = upload(list(zip(*exchanges, strict=True)), self._room.device)
            take_along(self._slots, self._kv, table)

    def entered(self, step: Step) -> None:
        """New requests begin with what their shared pages hold."""
        for admission in step.admissions:
            self._lags.admit(admission.slot, min(1, admission.computed))  # all but the newest pair counts as read
        if step.admissions:
            admitted = [[a.slot for a in step.admissions], [a.computed for a in step.admissions]]
            begin(self._state, self._slots, *upload(admitted, self._room.device))

    def catch_up(self, step: Step) -> None:
        """Read all but the newest pair of rows that draft and may lack more than a proposal reads."""
        slots = self._lags.beyond(step)
        self._read(slots, slots, lambda chosen: None)

    def width(self, step: Step) -> int:
        """Pairs of each row that the proposal must have room for."""
        return self._lags.width(step)

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        """As `PaddedDrafter.propose`: every row gets as many drafts as it may have."""
        count = len(rows.slots)
        wanted = Wanted(rows.slots, rows.drafts, newest=True, tokens=count * width)
        pairs = self._steps.plan_pairs(self._state, self._slots, wanted, self._numbers.firsts)
        attention = self._room.attend(self._kv, self._head.config, pairs.batch, width, False)
        scored = self._head.score(pairs.batch, self._head.fuse(pairs.taps), attention)
        self._steps.note_pairs(self._state, self._slots, wanted, drafts)
        self._draw(rows, drafts, 0, scored.logits, pairs.next_positions)
        for depth in range(1, drafts.tokens.shape[1]):
            scored, positions = self._feed(rows, drafts, depth, pairs, scored.feedback)
            self._draw(rows, drafts, depth, scored.logits, positions)

    def _feed(
        self, rows: DescribedRows, drafts: PaddedDrafts, depth: int, pairs: Pairs, feedback: Tensor
    ) -> tuple[HeadScored, Tensor]:
        """The head over the drafts of the depth before, its own output standing in for the target's features."""
        ids, places, writes, positions = self._steps.plan_drafts(self._state, rows, drafts, depth)
        batch = self._numbers.one_each(ids, places, writes, pairs.batch)
        attention = self._room.attend(self._kv, self._head.config, batch, 1, False)
        hidden = self._head.forward(feedback, ids, places, attention)  # all rows are wanted: nothing to gather
        return HeadScored(hidden.feedback, self._head.logits(hidden.normed)), positions

    def _draw(self, rows: DescribedRows, drafts: PaddedDrafts, depth: int, logits: Tensor, positions: Tensor) -> None:
        layout = self._numbers.layout(rows.slots, depth, positions)
        self._room.draw(logits, layout, drafts.tokens, self._head.target_ids, drafts.tokens[:, depth])

    def absorb(self, rows: DescribedRows, batch: Batch, taps: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Keep the taps of what stands."""
        self._steps.keep(self._state, self._slots, rows, batch, taps, counts)

    def extend(self, step: Step, batch: Batch, taps: Tensor) -> None:
        """Read all pairs of prompt chunks whose places have pages for certain, which leaves the newest to a proposal.

        In steps without drafts too: the taps of a prompt are gone once it is longer than the ring, and everyone who
        shares its pages later would do without it. They are read from the step itself, which may be longer too.
        """
        self._lags.follow(step)
        rows = [index for index, row in enumerate(step.rows) if feeds_prompt(row)]
        self._read([step.rows[row].slot for row in rows], rows, lambda chosen: Fed(chosen, batch, taps))

    def _read(self, slots: Sequence[int], rows: Sequence[int], fed: Callable[[Tensor], Fed | None]) -> None:
        """Read all but the newest pair of these slots, as many as each may lack.

        fed: the step that may be read from, given its rows on the device; rows: of each slot in it.
        """
        most, spare = [self._lags[slot] for slot in slots], self._room.slots
        for (of, counts, chosen), tokens in padded_passes(slots, most, rows, spare, self._room.device):
            self._pass(Wanted(of, counts, newest=False, tokens=tokens, fed=fed(chosen)))
        self._lags.read(slots)

    def _pass(self, wanted: Wanted) -> None:
        """Read pairs for what the head stores of them alone."""
        batch, taps, _ = self._steps.plan_pairs(self._state, self._slots, wanted, self._numbers.firsts)
        head, features = self._head, self._head.fuse(taps)
        if self._slots.one_layer:
            k, v = head.keys_values(features, batch.ids, batch.positions)
            store(k, v, self._kv.k_pages[0], self._kv.v_pages[0], batch.writes, batch.offsets)
        else:
            attention = self._room.attend(self._kv, head.config, batch, WIDTHS[-1], True)
            head.forward(features, batch.ids, batch.positions, attention)
        self._steps.note_pairs(self._state, self._slots, wanted)
