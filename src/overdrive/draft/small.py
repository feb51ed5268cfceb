"""A smaller model of the same vocabulary as the drafter: it reads the text like the target, with pages of its own.

    place, and token     0      1      2    ...   n-2     n-1           n known tokens, the newest not fed to the target
                        x0     x1     x2          x[n-2]  x[n-1]
    token n-1 predicts  draft 0, which is read at place n, and so on

The target's page table serves for both models, so a page number means the same tokens in both, and place t is token t.
Every known token stands in the device's history. So nothing has to be kept of steps without drafts: whatever the model
has not read when drafts are wanted, it reads then. Knows slots, places and pages; never requests or plans.
Source: Leviathan et al. 2023 and Chen et al. 2023 (a small model drafts); reading late is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from overdrive.config import LoadFormat, ModelOptions
from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout, Sampler, SamplingState
from overdrive.device.state import SlotState
from overdrive.draft.base import Drafts, Fed
from overdrive.draft.batches import Ints, known_tokens, one_each, passes
from overdrive.draft.marks import PageMarks
from overdrive.draft.padded import PaddedRoom
from overdrive.draft.padded_small import PaddedSmallDrafter
from overdrive.draft.room import Room
from overdrive.draft.vocabulary import check_same_vocabulary, vocabulary_of
from overdrive.errors import OverdriveError
from overdrive.model.assemble import Form
from overdrive.model.transformer import Scored, Transformer
from overdrive.model.weights import Loaded, load_as
from overdrive.progress import Progress
from overdrive.types import OVERSHOOT, PageEntry

PASS_TOKENS = 512
"""Most tokens read in one pass."""


class SmallModelDrafter:
    """Drafts are what the small model would say under the row's own sampling rules. CPU.

    Drawn with the target's noise at the same positions, so that drafts agree at any temperature (see noise.py).

    Of slot s the places `0 .. stops[s] - 1` hold the keys and values of the known tokens there, and those up to
    `drafted[s]` hold the drafts of the step under way: they stay right as far as the drafts are accepted.

    A page from the prefix cache of which the small model has read only a part, or nothing, is read again from its
    first place, though other rows may see it: its key is all tokens up to its end, so whoever writes there writes the
    same.
    """

    sources = ("small",)
    taps = ()

    def __init__(
        self,
        model: Transformer,
        forward: Callable[[Batch], Scored],
        n_pages: int,
        state: SlotState,
        sampling: SamplingState,
        sampler: Sampler,
    ) -> None:
        """forward: the model's pass over its own `n_pages` pages; its result is good until the next call.

        Texts longer than the model's limit get no drafts.
        """
        slots = len(state.lengths)
        self._model = model
        self._forward = forward
        self._state = state
        self._sampling = sampling
        self._sampler = sampler
        self._marks = PageMarks(n_pages, state.page_size)
        self._stops, self._drafted = np.zeros((2, slots), np.int64)
        self._gaps = np.zeros((slots, 2), np.int64)  # none: it reads everything
        self._table, self._lengths = state.page_table.numpy(), state.lengths.numpy()
        self._computed = state.computed.numpy()
        nobody = np.zeros(0, np.int64)  # compiles here, not under the first request
        known_tokens(state, nobody, nobody, nobody, 0, self._gaps[nobody])
        first = torch.zeros(1, dtype=torch.int64)
        one_each(state, first, first, first, 0, self._gaps)
        _keep_accepted(self._stops, self._drafted, self._lengths, nobody)
        self._mark(nobody, nobody)

    def lag(self, slot: int) -> int:
        """Known tokens of this slot that the model has not read."""
        return int(self._lengths[slot] - self._stops[slot])

    def enter(self, entry: PageEntry) -> None:
        """Note what new pages hold. One exchanged for a page that the model has not read is to be read again."""
        self._marks.enter(entry)
        read = self._marks.leading(np.array(entry.pages, np.int32))
        if entry.shared and read < len(entry.pages):
            self._stops[entry.slot] = min(self._stops[entry.slot], (entry.first + read) * self._state.page_size)

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """Begin with the shared pages that the model has read, up to the first that it has not."""
        pages = self._table[slot, : computed // self._state.page_size]
        self._stops[slot] = self._marks.leading(pages) * self._state.page_size
        self._drafted[slot] = 0

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """As `Drafter.propose`: every row gets as many drafts as it may have, within the small model's own limit."""
        tokens = torch.zeros((len(slots), width), dtype=torch.int64)
        counts = caps.clone()
        counts[self._state.lengths[slots] + caps > self._model.max_model_len] = 0
        rows = counts.nonzero().squeeze(1)
        if len(rows):
            self._draft(tokens, counts, slots, rows)
        return Drafts(tokens, counts, torch.zeros_like(counts))

    def absorb(self, fed: Fed) -> None:
        """Keep what the model has read of the accepted drafts. Without drafts there is nothing to do."""
        if fed.tokens.shape[1] == 1:
            return
        slots = fed.slots.numpy()
        begins = self._stops[slots]
        _keep_accepted(self._stops, self._drafted, self._lengths, slots)
        self._mark(slots, begins)

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Read as far as the target has: places beyond have no pages yet.

        Not in a step without drafts: a small model's pass costs a good part of the target's, and it can read the text
        whenever it is wanted.
        """
        if not drafts:
            return
        numbers = slots.numpy()
        goals = np.minimum(self._computed[numbers], self._model.max_model_len)
        self._read(numbers, np.maximum(goals, self._stops[numbers]))

    def _draft(self, tokens: Tensor, counts: Tensor, slots: Tensor, rows: Tensor) -> None:
        """Write `tokens[r, :counts[r]]` for the rows of which drafts are wanted."""
        numbers, lengths = slots[rows].numpy(), self._state.lengths[slots]
        # The newest token has not been read by any earlier proposal; should one be asked twice, it is read again.
        self._stops[numbers] = np.minimum(self._stops[numbers], self._lengths[numbers] - 1)
        logits = self._read(numbers, self._lengths[numbers])
        self._drafted[numbers] = self._lengths[numbers] + counts[rows].numpy() - 1
        for depth in range(int(counts.max())):
            if depth:
                rows = rows[counts[rows] > depth]
                places = lengths[rows] + (depth - 1)
                batch = one_each(self._state, slots[rows], tokens[rows, depth - 1], places, 0, self._gaps)
                logits = self._forward(batch).logits
            layout = Layout(rows, slots[rows], torch.full_like(rows, depth), lengths[rows] + depth)
            tokens[rows, depth] = self._sampler(logits, layout, tokens, self._sampling)

    def _read(self, slots: Ints, goals: Ints) -> Tensor:
        """Read the known tokens of these slots up to place `goals[r] - 1`, in passes of at most PASS_TOKENS.

        Returns the logits behind the last token of each slot that lacked any, [R, V].
        """
        begins = self._stops[slots]
        ends = []
        for rows, counts in passes(goals - begins, PASS_TOKENS):
            at = self._stops[slots[rows]]
            batch = known_tokens(self._state, slots[rows], at, counts, 0, self._gaps[slots[rows]])
            logits = self._forward(batch).logits
            self._stops[slots[rows]] = at + counts
            done = torch.from_numpy(self._stops[slots[rows]] == goals[rows])
            ends.append(logits[done])  # a copy: the next pass may write over what this one gives
        self._mark(slots, begins)
        return torch.cat(ends) if len(ends) > 1 else ends[0] if ends else torch.empty(0)

    def _mark(self, slots: Ints, begins: Ints) -> None:
        """Places from `begins[r]` on have come to stand."""
        self._marks.mark(self._table, slots, np.zeros_like(begins), begins, self._stops[slots])


@numba.njit(cache=True, nogil=True)
def _keep_accepted(stops, drafted, lengths, slots):
    """The newest token is where drafts and text part, or it has not been drafted: all before it was read as it stands.

    place            n-1   n      n+1    n+2            three drafts, two of them read; the second was refused
    read             x     d0     d1
    text             x     d0     y                     y is the newest token: stop = its place
    """
    for slot in slots:
        stops[slot] = max(stops[slot], min(drafted[slot], lengths[slot] - 1))
        drafted[slot] = 0


@dataclass(frozen=True, slots=True)
class SmallModelChoice:
    """A loaded small model. source: where it came from."""

    transformer: Transformer
    source: str

    name = "small"
    window = 1 << 30  # all of them

    @property
    def model(self) -> str:
        return self.source

    def page_bytes(self, page_size: int) -> int:
        """The small model's keys and values."""
        config = self.transformer.config
        values = 2 * config.layers * config.kv_heads * config.head_dim * page_size
        return values * self.transformer.dtype.itemsize

    def slot_bytes(self) -> int:
        """Two numbers a slot."""
        return 16

    def open(self, room: Room) -> SmallModelDrafter:
        """The drafter, with pages of its own beside the target's."""
        model = self.transformer
        kv = PagedKV.allocate(model.config, room.n_pages, room.state.page_size, model.dtype)
        forward = room.device.forward(model, kv)
        return SmallModelDrafter(model, forward, room.n_pages, room.state, room.sampling, room.sampler)

    def open_padded(self, room: PaddedRoom) -> PaddedSmallDrafter:
        """The same in static shapes. Raises OverdriveError where texts can be longer than the small model takes."""
        most = room.state.history.shape[1] - OVERSHOOT
        if self.transformer.max_model_len < most:
            raise OverdriveError(
                f"--draft-model {self.source} takes {self.transformer.max_model_len} positions, the server {most}: "
                f"give --max-model-len {self.transformer.max_model_len}"
            )
        return PaddedSmallDrafter(self.transformer, room)


def load_small(model: str, target: Loaded, options: ModelOptions, form: Form, progress: Progress) -> SmallModelChoice:
    """The model named `model`, in a form of the target's precision.

    Raises OverdriveError, one line, where it cannot be loaded and where its vocabulary is not the target's.
    """
    load_format: LoadFormat = "dummy" if options.load_format == "dummy" else "auto"
    own = ModelOptions(load_format=load_format, precision=options.precision, seed=options.seed)
    try:
        loaded = load_as(model, own, form, progress)
    except OverdriveError as error:
        raise OverdriveError(f"--draft-model {model} cannot draft as a small model: {error}") from None
    check_same_vocabulary(vocabulary_of(target), vocabulary_of(loaded))
    return SmallModelChoice(loaded.transformer, str(loaded.source))
