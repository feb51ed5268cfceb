"""A smaller model as the drafter, in static shapes: what `SmallModelDrafter` drafts, with its state on the device.

It reads the text as a head does whose pairs need no features: place t is token t, and nothing has to be kept of a step.
The drafts of a step that were accepted are read once more with the newest token, in a pass that runs anyway.
Source: Leviathan et al. 2023 and Chen et al. 2023 (a small model drafts); reading late is this project's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.draft.eagle3.padded import steps_for
from overdrive.draft.eagle3.slots import HeadSlots
from overdrive.draft.eagle3.steps import Wanted, begin_text, take_along
from overdrive.draft.exchanges import PageMirror, rounds
from overdrive.draft.lags import WIDTHS, LagBounds, feeds_prompt
from overdrive.draft.padded import DescribedRows, PaddedDrafts, PaddedRoom
from overdrive.draft.padded_rows import RowNumbers, padded_passes
from overdrive.draft.uploads import upload
from overdrive.model.transformer import Transformer
from overdrive.types import Step


class PaddedSmallDrafter:
    """K drafts per row from a model of the target's vocabulary that takes texts as long. `PaddedDrafter`."""

    sources = ("small",)
    taps = ()
    widths = WIDTHS

    def __init__(self, model: Transformer, room: PaddedRoom) -> None:
        state, device = room.state, room.device
        slots, most = state.history.shape
        self._model = model
        self._room = room
        self._state = state
        self._kv = PagedKV.allocate(model.config, room.n_pages, state.page_size, model.dtype, device)
        self._slots = HeadSlots.allocate(state, most + 1, room.n_pages, 0, False, model.dtype)
        self._slots.oldest.fill_(-1)
        self._slots.stops.zero_()
        self._steps = steps_for(device)
        self._lags = LagBounds(slots, most)
        self._pages = PageMirror(slots, state.page_table.shape[1], room.n_pages)
        self._numbers = RowNumbers(slots, 0, device)
        self._ids = torch.arange(model.config.vocab, device=device)

    def enter(self, step: Step) -> None:
        """What the model stored of slots in pages that are exchanged goes along."""
        for exchanges in rounds(self._pages.enter(step)):
            take_along(self._slots, self._kv, upload(list(zip(*exchanges, strict=True)), self._room.device))

    def entered(self, step: Step) -> None:
        """New requests begin with the shared pages that the model has read, which the device alone knows."""
        for admission in step.admissions:
            self._lags.admit(admission.slot, admission.computed + 1)
        if step.admissions:
            admitted = [[a.slot for a in step.admissions], [a.computed for a in step.admissions]]
            begin_text(self._state, self._slots, *upload(admitted, self._room.device))

    def catch_up(self, step: Step) -> None:
        """Read all but the newest token of rows that draft and may lack more than a proposal reads."""
        self._read(self._lags.beyond(step))

    def width(self, step: Step) -> int:
        """Tokens of each row that the proposal must have room for."""
        return self._lags.width(step)

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        """As `PaddedDrafter.propose`: every row gets as many drafts as it may have."""
        wanted = Wanted(rows.slots, rows.drafts, newest=True, tokens=len(rows.slots) * width)
        batch, _, positions = self._steps.plan_pairs(self._state, self._slots, wanted, self._numbers.firsts)
        logits = self._model.score(batch, self._room.attend(self._kv, self._model.config, batch, width, False)).logits
        self._steps.note_pairs(self._state, self._slots, wanted, drafts)
        self._draw(rows, drafts, 0, logits, positions)
        for depth in range(1, drafts.tokens.shape[1]):
            ids, places, writes, positions = self._steps.plan_drafts(self._state, rows, drafts, depth)
            one_each = self._numbers.one_each(ids, places, writes, batch)
            attention = self._room.attend(self._kv, self._model.config, one_each, 1, False)
            logits = self._model.logits(self._model.forward(one_each, attention).final)  # all rows are wanted
            self._draw(rows, drafts, depth, logits, positions)

    def _draw(self, rows: DescribedRows, drafts: PaddedDrafts, depth: int, logits: Tensor, positions: Tensor) -> None:
        layout = self._numbers.layout(rows.slots, depth, positions)
        self._room.draw(logits, layout, drafts.tokens, self._ids, drafts.tokens[:, depth])

    def absorb(self, rows: DescribedRows, batch: Batch, taps: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Nothing is kept but that pages are begun anew."""
        self._steps.keep(self._state, self._slots, rows, batch, taps, counts)

    def extend(self, step: Step, batch: Batch, taps: Tensor) -> None:
        """Read prompts as far as the target has. Not in a step without drafts, as on the CPU: the pass is not cheap,
        and the text can be read whenever it is wanted."""
        self._lags.follow(step)
        if step.plan.drafts:
            self._read([row.slot for row in step.rows if feeds_prompt(row)])

    def _read(self, slots: Sequence[int]) -> None:
        """Read all but the newest token of these slots, as many as each may lack."""
        most, spare = [self._lags[slot] for slot in slots], self._room.slots
        for (of, counts, _), tokens in padded_passes(slots, most, slots, spare, self._room.device):
            wanted = Wanted(of, counts, newest=False, tokens=tokens)
            batch, _, _ = self._steps.plan_pairs(self._state, self._slots, wanted, self._numbers.firsts)
            self._model.forward(batch, self._room.attend(self._kv, self._model.config, batch, WIDTHS[-1], True))
            self._steps.note_pairs(self._state, self._slots, wanted)
        self._lags.read(slots)
