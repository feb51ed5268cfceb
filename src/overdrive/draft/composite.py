"""Two drafters as one: copies of the text's own long runs where there are any, else a network's drafts.

An answer that repeats its prompt is copied at no cost and with many drafts right; a network is better at all else. The
choice is made for every row anew, and a row that is copied costs the network nothing: it catches up when it is asked
again. Knows who offered what; never how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.draft.base import Drafter, Drafts, Fed
from overdrive.draft.copies import PaddedNgramDrafter
from overdrive.draft.ngram import NgramDrafter
from overdrive.draft.padded import DescribedRows, PaddedDrafter, PaddedDrafts, PaddedRoom
from overdrive.draft.room import Choice, Room
from overdrive.types import PageEntry, Step

LONGER = 6
"""Tokens that a match must be longer to be preferred to a network's drafts than to be preferred to none."""


class CompositeDrafter:
    """`copier` writes the drafts of a row where it offers any, `network` those of the other rows.

    copier: wants no taps and offers only what it is sure of. `sources` are its own, then the network's.
    """

    def __init__(self, copier: Drafter, network: Drafter) -> None:
        self.sources = (*copier.sources, *network.sources)
        self.taps = network.taps
        self._copier = copier
        self._network = network

    def enter(self, entry: PageEntry) -> None:
        """Pages of a slot change, for both."""
        self._copier.enter(entry)
        self._network.enter(entry)

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """A slot has a new request, for both."""
        self._copier.admit(slot, tokens, computed)
        self._network.admit(slot, tokens, computed)

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """As `Drafter.propose`; the network is asked for the rows that get no copy."""
        drafts = self._copier.propose(slots, caps, width)
        rest = ((drafts.counts == 0) & (caps > 0)).nonzero().squeeze(1)
        if len(rest):
            tokens, counts, sources = self._network.propose(slots[rest], caps[rest], width)
            drafts.tokens[rest] = tokens
            drafts.counts[rest] = counts
            drafts.sources[rest] = sources + len(self._copier.sources)
        return drafts

    def absorb(self, fed: Fed) -> None:
        """Both keep what they need, whoever wrote the drafts."""
        self._copier.absorb(fed)
        self._network.absorb(fed)

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Both read what they have kept."""
        self._copier.extend(slots, drafts)
        self._network.extend(slots, drafts)


class PaddedComposite:
    """The same choice in static shapes, made on the device. `PaddedDrafter`.

    The network drafts for every row, those that are copied too: no shape depends on what the copier finds, and the host
    need not know it to bound what the network lacks.
    """

    def __init__(self, copier: PaddedNgramDrafter, network: PaddedDrafter) -> None:
        self.sources = (*copier.sources, *network.sources)
        self.taps = network.taps
        self.widths = network.widths
        self._copier = copier
        self._network = network

    def enter(self, step: Step) -> None:
        """The copier keeps nothing of pages, or of anything that a step changes."""
        self._network.enter(step)

    def entered(self, step: Step) -> None:
        """Slots have new requests."""
        self._network.entered(step)

    def catch_up(self, step: Step) -> None:
        """The network reads what no proposal holds."""
        self._network.catch_up(step)

    def width(self, step: Step) -> int:
        """What the network must read of a row."""
        return self._network.width(step)

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        """As `PaddedDrafter.propose`; copies are written over the network's drafts."""
        self._network.propose(rows, drafts, width)
        self._copier.copy_over(rows, drafts, len(self._network.sources))

    def absorb(self, rows: DescribedRows, batch: Batch, taps: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """The network keeps what it needs, whoever wrote the drafts."""
        self._network.absorb(rows, batch, taps, tokens, counts)

    def extend(self, step: Step, batch: Batch, taps: Tensor) -> None:
        """The network reads prompts."""
        self._network.extend(step, batch, taps)


@dataclass(frozen=True, slots=True)
class CompositeChoice:
    """n-gram copies where their match is long, else another choice's drafts. shortest: as for n-grams alone."""

    shortest: int
    network: Choice

    @property
    def name(self) -> str:
        return f"ngram+{self.network.name}"

    @property
    def model(self) -> str:
        return self.network.model

    @property
    def window(self) -> int:
        """The network's; copies are looked up in the text itself."""
        return self.network.window

    def page_bytes(self, page_size: int) -> int:
        """The network's; copies need none."""
        return self.network.page_bytes(page_size)

    def slot_bytes(self) -> int:
        """The network's; the index of copies is small beside a slot's pages."""
        return self.network.slot_bytes()

    def open(self, room: Room) -> CompositeDrafter:
        """Both drafters, with their state."""
        copier = NgramDrafter(room.state.history, room.state.lengths, self.shortest + LONGER)
        return CompositeDrafter(copier, self.network.open(room))

    def open_padded(self, room: PaddedRoom) -> PaddedComposite:
        """Both in static shapes."""
        copier = PaddedNgramDrafter(room.state, self.shortest + LONGER)
        return PaddedComposite(copier, self.network.open_padded(room))
