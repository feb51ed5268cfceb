"""EAGLE-3 drafts in the engine: what the head has read of each slot, and how it catches up.

    position             0      1      2    ...   n-2     n-1           n known tokens, the newest not fed yet
    token               x0     x1     x2          x[n-2]  x[n-1]
    pair (g[p], x[p+1])  0      1      2           n-2                  g[p]: the target's taps at position p, fused
    its place            1      2      3           n-1                  RoPE position p; place 0 stays empty
    predicts            x2     x3     x4           x[n]

Pair n-2 predicts the first draft; the head's own output stands in for the target's features from there on. A place is
the pair's place in the slot's pages (eagle3.md: a page's keys depend only on the tokens in the page's key that way).
Pairs are read when drafts are wanted and not before: `absorb` only keeps taps. A slot that lags by more than the ring
holds goes on behind a gap (`Reading`), which may cost acceptance and never text.
Source: Li et al. 2025, EAGLE-3; the catch-up is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout, Sampler, SamplingState
from overdrive.device.state import SlotState
from overdrive.draft.base import Drafts, Fed
from overdrive.draft.batches import Ints, known_tokens, one_each, passes
from overdrive.draft.drawing import DraftSampler
from overdrive.draft.eagle3.network import EagleHead, HeadScored
from overdrive.draft.eagle3.reading import FIRST, Reading
from overdrive.draft.eagle3.ring import TapRing
from overdrive.draft.marks import PageMarks
from overdrive.types import PageEntry

PASS_TOKENS = 512
"""Most pairs read in one pass."""

Result = TypeVar("Result")
Pass = Callable[[Batch, Tensor], HeadScored]
"""pass(batch, features [T, W]): the head over the pairs at the batch's positions, which are places, stored in its own
pages. The result is good until the next call."""


STORED_APART = 16
"""Pairs of a proposal, beside every row's newest, from which on they have a pass of their own: what the head stores of
them is a third of its arithmetic."""


@dataclass(frozen=True, slots=True)
class HeadPasses:
    """The head on a device. read: features are the target's taps, fused first. feed: they are the head's feedback.
    store: as `read`, for what is stored alone."""

    read: Pass
    feed: Pass
    store: Callable[[Batch, Tensor], object]


class EagleDrafter:
    """K drafts per row from an EAGLE-3 head, in one launch. CPU.

    The ring of slot s holds the taps from position `oldest[s]` on, or of the newest `window` positions where that is
    fewer.
    """

    sources = ("eagle3",)

    def __init__(
        self,
        head: EagleHead,
        passes: HeadPasses,
        kv: PagedKV,
        ring: TapRing,
        n_pages: int,
        state: SlotState,
        sampling: SamplingState,
        sampler: Sampler,
    ) -> None:
        slots = len(state.lengths)
        self.taps = head.config.taps
        self._head = head
        # With more layers than one, what is stored of a pair depends on the pairs it sees, not on its text alone.
        self._one_layer = head.config.layers == 1
        self._passes = passes
        self._kv = kv
        self._ring = ring
        self._state = state
        self._sampler = DraftSampler(head.target_ids, sampling, sampler, slots)
        self._marks = PageMarks(n_pages, state.page_size)
        self._reading = Reading(slots)
        self._oldest = np.zeros(slots, np.int64)
        self._given = np.zeros(state.page_table.shape, np.int64)  # the page's owner number when the slot got it
        self._table = state.page_table.numpy()
        self._lengths, self._computed = state.lengths.numpy(), state.computed.numpy()
        self._compile()

    def _compile(self) -> None:
        """Here, and not under the first request."""
        nobody, first = np.zeros(0, np.int64), torch.zeros(1, dtype=torch.int64)
        known_tokens(self._state, nobody, nobody, nobody, FIRST, self._reading.gaps[nobody])
        one_each(self._state, first, first, first, FIRST, self._reading.gaps)
        self._store(nobody, nobody)

    def lag(self, slot: int) -> int:
        """Pairs that the head could have read of this slot and has not."""
        return int(min(self._computed[slot], self._lengths[slot] - 1) + 1 - self._reading.stops[slot])

    def enter(self, entry: PageEntry) -> None:
        """Note what new pages hold; a page exchanged for its equal takes what the head has read along."""
        self._marks.enter(entry)
        for column, page in enumerate(entry.pages, start=entry.first):
            if entry.shared:
                self._take_along(entry.slot, column, page)
            self._given[entry.slot, column] = self._marks.owners[page]

    def _take_along(self, slot: int, column: int, page: int) -> None:
        """The slot's page at `column` becomes `page`, of the same tokens, in which the head may not have read them."""
        size, old = self._state.page_size, self._table[slot, column]
        begin, end = column * size, (column + 1) * size
        if not old or self._marks.written[page] or self._reading.stops[slot] <= begin:
            return
        if self._given[slot, column] != self._marks.owners[old]:  # the slot sat out a step and the page was given away
            self._reading.lose(slot, begin, end)
            return
        self._store(np.array([slot]), np.array([end]))  # the rest of the page
        if self._reading.stands(slot, begin if self._one_layer else 0, end):
            self._kv.copy_page(int(old), page)
            self._marks.written[page] = 1
        else:  # only a part of the page was read: others may hold more of theirs
            self._reading.lose(slot, begin, end)

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """Begin with what the shared pages hold: all pairs but those from the first page not read to the last."""
        size = self._state.page_size
        pages = self._table[slot, : computed // size]
        read, unread = self._marks.leading(pages), len(pages) - self._marks.trailing(pages)
        self._reading.begin(slot, read * size, unread * size, computed)
        self._oldest[slot] = max(0, computed - 1)
        if computed:
            self._ring.restore(slot, computed - 1, int(pages[-1]))

    def absorb(self, fed: Fed) -> None:
        """Keep the taps of what stands."""
        self._ring.keep(fed)

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Read all pairs of these slots whose places have pages for certain, which leaves the newest to a proposal.

        In steps without drafts too: the taps of a prompt are gone once it is longer than the ring, and everyone who
        shares its pages later would do without it. One layer over tokens that the target took all its layers for.
        """
        mine = slots.numpy()
        self._store(mine, self._computed[mine])

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """As `Drafter.propose`: every row gets as many drafts as it may have."""
        tokens = torch.zeros((len(slots), width), dtype=torch.int64)
        drafting = caps.nonzero().squeeze(1)
        if len(drafting):
            self._draft(slots, caps, drafting, tokens)
        return Drafts(tokens, caps.clone(), torch.zeros_like(caps))

    def _draft(self, slots: Tensor, caps: Tensor, rows: Tensor, tokens: Tensor) -> None:
        """Fill `tokens` [R, K] of the rows that want drafts; a row leaves once it has as many as it may have."""
        mine, wanted = slots[rows], caps[rows]
        places = self._state.lengths[mine] - 1  # of the newest token, then of each draft
        feedback, logits = self._read(mine.numpy())
        for depth in range(int(caps.max())):
            if depth:
                going = wanted > depth
                if not going.all():
                    rows, mine, wanted, places, feedback = (x[going] for x in (rows, mine, wanted, places, feedback))
                places = places + 1
                batch = one_each(self._state, mine, tokens[rows, depth - 1], places, FIRST, self._reading.gaps)
                feedback, logits = self._passes.feed(batch, feedback)
            layout = Layout(rows, mine, torch.full_like(rows, depth), places + 1)
            tokens[rows, depth] = self._sampler.draw(logits, layout, tokens)

    def _read(self, slots: Ints) -> HeadScored:
        """Read all pairs that these slots lack, one at least, and say what follows the newest of each slot."""
        newest = self._computed[slots]
        if np.maximum(newest - self._reading.stops[slots], 0).sum() >= STORED_APART:
            self._store(slots, newest)
        ends: list[HeadScored] = []
        for rows, scored in self._passes_over(slots, newest + 1, self._passes.read):
            done = torch.from_numpy(self._reading.stops[slots[rows]] == self._computed[slots[rows]] + 1)
            only = len(rows) == len(slots) and bool(done.all())
            # What a pass gives is good until the next one.
            ends.append(scored if only else HeadScored(*(part[done] for part in scored)))
        return ends[0] if len(ends) == 1 else HeadScored(*(torch.cat(parts) for parts in zip(*ends, strict=True)))

    def _store(self, slots: Ints, goals: Ints) -> None:
        """Read each slot's pairs up to the place `goals[r] - 1`, for what the head stores of them alone."""
        for _ in self._passes_over(slots, goals, self._passes.store):
            pass

    def _passes_over(
        self, slots: Ints, goals: Ints, read: Callable[[Batch, Tensor], Result]
    ) -> Iterator[tuple[Ints, Result]]:
        """The same with either pass over the target's taps; rows and what came of it, pass by pass."""
        stops = self._reading.stops
        # Pair p at place p + 1 needs the taps of position p.
        kept = np.maximum(self._oldest[slots], self._computed[slots] - self._ring.window)
        self._reading.skip_lost(slots, kept + 1)
        for rows, counts in passes(np.maximum(goals - stops[slots], 0), PASS_TOKENS):
            mine = slots[rows]
            begins, gaps = stops[mine], self._reading.gaps[mine]
            batch = known_tokens(self._state, mine, begins, counts, FIRST, gaps)
            found = read(batch, self._ring.gather(batch, mine))
            stops[mine] = begins + counts
            alike = np.flatnonzero(self._one_layer | (gaps[:, 1] == 0))
            self._marks.mark(self._table, mine[alike], gaps[alike, 1], begins[alike], stops[mine[alike]])
            yield rows, found
