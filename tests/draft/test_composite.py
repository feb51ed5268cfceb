"""Two drafters as one: who is asked, who is named, and that the network's drafts stay those of the whole text."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.sampling import SamplingState, sample
from overdrive.device.state import SlotState
from overdrive.draft import Drafts, Room
from overdrive.draft.base import Fed
from overdrive.draft.composite import CompositeChoice, CompositeDrafter
from overdrive.draft.ngram import NgramDrafter
from overdrive.draft.small import SmallModelChoice
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import Admission, PageEntry, SamplingParams
from tests.loop.tiny_drafters import small_model
from tests.loop.tiny_engine import VOCAB, device, tiny, tiny_bench

from .schedules import Seen, prompt_stream, random_schedule
from .watched import watched


class Fake:
    """Offers `token` for every row, as two sources in turn, and notes what it is told."""

    sources = ("even", "odd")
    taps = (1, 2)

    def __init__(self, token: int) -> None:
        self.token = token
        self.told: list[object] = []

    def enter(self, entry: PageEntry) -> None:
        self.told.append(entry)

    def admit(self, slot: int, tokens, computed: int) -> None:
        self.told.append((slot, tuple(tokens), computed))

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        self.told.append((slots.tolist(), caps.tolist()))
        tokens = torch.full((len(slots), width), self.token)
        tokens[torch.arange(width) >= caps.unsqueeze(1)] = 0
        return Drafts(tokens, caps.clone(), slots % 2)

    def absorb(self, fed: Fed) -> None:
        self.told.append(fed)

    def extend(self, slots: Tensor, drafts: int) -> None:
        self.told.append(slots)


def history(*texts: list[int]) -> tuple[Tensor, Tensor]:
    tokens = torch.zeros((len(texts), 64), dtype=torch.int32)
    for slot, text in enumerate(texts):
        tokens[slot, : len(text)] = torch.tensor(text)
    return tokens, torch.tensor([len(text) for text in texts])


def test_copies_come_before_the_network_row_by_row() -> None:
    tokens, lengths = history([1, 2, 3, 1, 2, 3, 1], [5, 6, 7, 8], [4, 4, 4, 4, 4], [9, 8, 7])
    network = Fake(60)
    both = CompositeDrafter(NgramDrafter(tokens, lengths, shortest=3), network)
    drafts = both.propose(torch.tensor([3, 0, 1, 2]), torch.tensor([2, 3, 1, 0]), 3)
    assert network.told == [([3, 1], [2, 1])], "neither the copied row nor the one without room"
    assert drafts.tokens.tolist() == [[60, 60, 0], [2, 3, 1], [60, 0, 0], [0, 0, 0]]
    assert drafts.counts.tolist() == [2, 3, 1, 0]
    assert [both.sources[source] for source in drafts.sources.tolist()[:3]] == ["odd", "ngram", "odd"]
    assert both.sources == ("ngram", "even", "odd")


def test_the_network_is_not_asked_where_all_rows_are_copied() -> None:
    tokens, lengths = history([1, 2, 1, 2, 1, 2])
    network = Fake(60)
    drafts = CompositeDrafter(NgramDrafter(tokens, lengths, shortest=2), network).propose(
        torch.tensor([0]), torch.tensor([2]), 2
    )
    assert drafts.tokens.tolist() == [[1, 2]]
    assert network.told == []


def test_both_are_told_everything() -> None:
    first, second = Fake(1), Fake(2)
    both = CompositeDrafter(first, second)
    nobody = torch.zeros(0, dtype=torch.int64)
    entry = PageEntry(0, 0, (3,))
    fed = Fed(Batch(*[nobody] * 9), nobody, nobody, nobody, nobody, nobody)
    both.enter(entry)
    both.admit(0, (1, 2), 0)
    both.absorb(fed)
    both.extend(nobody, 3)
    assert first.told == second.told == [entry, (0, (1, 2), 0), fed, nobody]
    assert both.taps == second.taps


def test_the_networks_drafts_are_those_of_the_whole_text_after_copies_too() -> None:
    """A row that was copied for some steps lags as one without drafts does."""
    seen, rounds = Seen(), 0
    for seed in range(8):

        def make(room: Room) -> CompositeDrafter:
            return CompositeDrafter(NgramDrafter(room.state.history, room.state.lengths, 2), watched(seen)(room))

        b, _ = random_schedule(random.Random(seed), make)
        b.check_conserved()
        rounds = rounds + b.committer._counts.rounds.sum(axis=1)
    assert min(rounds[:2]) > 10, "both wrote drafts"


def test_acceptance_is_counted_by_source() -> None:
    """The network is the target itself: what is refused was copied."""

    def make(room: Room) -> CompositeDrafter:
        network = SmallModelChoice(tiny(), "target").open(room)
        return CompositeDrafter(NgramDrafter(room.state.history, room.state.lengths, 2), network)

    b = tiny_bench(prompt_stream(), FixedDrafts(3), make, lookahead=0)
    for i in range(4):
        params = SamplingParams(max_tokens=60, temperature=0.5 * i, seed=i)
        b.scheduler.submit(Request(f"r{i}", tuple(range(i, i + 5)), params, i))
    b.run()
    counts = b.committer._counts
    assert counts.sources == ("ngram", "small", "grammar")
    assert (counts.rounds[:2].sum(axis=1) > 5).all()
    assert (counts.accepted[1] == counts.reached[1]).all()
    assert counts.accepted[0].sum() < counts.reached[0].sum()


def test_a_copy_is_preferred_where_its_match_is_long() -> None:
    """Eight tokens that match are too few, nine are enough."""
    state = SlotState(2, 64, 4)
    for slot, count in enumerate((8, 9)):
        run = list(range(20, 20 + count))
        state.admit(Admission("r", slot, (1, *run, 2, *run), 30, 0, SamplingParams(max_tokens=1)))
    sampling = SamplingState(2, VOCAB, torch.float64)
    for slot in (0, 1):
        sampling.admit(slot, SamplingParams(max_tokens=1, temperature=0.0), (), 0)
        state.page_table[slot, :8] = torch.arange(1 + 8 * slot, 9 + 8 * slot)
    choice = CompositeChoice(3, SmallModelChoice(small_model(), "tiny"))
    both = choice.open(Room(device(), state, sampling, sample, n_pages=20))
    drafts = both.propose(torch.tensor([0, 1]), torch.tensor([2, 2]), 2)
    assert [both.sources[source] for source in drafts.sources.tolist()] == ["small", "ngram"]
    assert drafts.tokens[1].tolist() == [2, 20]
    assert choice.name == "ngram+small"
    assert choice.page_bytes(4) == choice.network.page_bytes(4)
