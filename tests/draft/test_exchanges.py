"""A page exchanged for its equal: who still owns what lies in it, and what of a head's part goes along."""

from __future__ import annotations

import pytest
import torch

from overdrive.device.attention.reference import PagedKV
from overdrive.device.state import SlotState
from overdrive.draft.eagle3.slots import HeadSlots
from overdrive.draft.eagle3.steps import take_along
from overdrive.draft.exchanges import Exchange, PageMirror, rounds
from overdrive.model.dummy import tiny_config
from overdrive.policy.controller import Plan
from overdrive.types import Admission, PageEntry, SamplingParams, Step, Why

SIZE, OLD, TWIN = 4, 3, 7


def step(*entries: PageEntry, admit: tuple[int, ...] = ()) -> Step:
    params = SamplingParams(max_tokens=1)
    admissions = tuple(Admission("r", slot, (1, 2), 2, 0, params) for slot in admit)
    return Step(1, (), Plan(0, Why("test")), admissions, entries)


def test_only_pages_of_the_same_owner_are_owned() -> None:
    mirror = PageMirror(slots=2, columns=8, n_pages=12)
    assert mirror.enter(step(PageEntry(0, 0, (3, 4)), admit=(0, 1))) == []
    assert mirror.enter(step(PageEntry(0, 0, (7,), shared=True))) == [Exchange(0, 0, 3, 7, 1)]
    mirror.enter(step(PageEntry(1, 0, (4,))))  # slot 0 sits this step out, and its second page is another's by now
    assert mirror.enter(step(PageEntry(0, 1, (8,), shared=True))) == [Exchange(0, 1, 4, 8, 0)]


def test_pages_that_an_exchange_sets_free_may_be_given_out_in_the_same_step() -> None:
    mirror = PageMirror(slots=2, columns=8, n_pages=12)
    mirror.enter(step(PageEntry(0, 0, (3,)), admit=(0, 1)))
    found = mirror.enter(step(PageEntry(1, 0, (3,)), PageEntry(0, 0, (7,), shared=True)))
    assert found == [Exchange(0, 0, 3, 7, 1)]


def test_an_admission_exchanges_nothing() -> None:
    mirror = PageMirror(slots=1, columns=8, n_pages=12)
    mirror.enter(step(PageEntry(0, 0, (3,)), admit=(0,)))
    assert mirror.enter(step(PageEntry(0, 0, (7,), shared=True), admit=(0,))) == []


def test_no_round_has_a_page_twice() -> None:
    a, b, c = Exchange(0, 0, 3, 7, 1), Exchange(1, 0, 4, 7, 1), Exchange(1, 1, 5, 8, 1)
    assert rounds([a, b, c]) == [[a, c], [b]]
    assert rounds([]) == []


class Slot:
    """A slot whose page OLD at column 1, places 4 .. 7, is exchanged for TWIN."""

    def __init__(self, stop: int, gap: tuple[int, int] = (0, 0), one_layer: bool = True) -> None:
        config = tiny_config(layers=1)
        self.kv = PagedKV.allocate(config, 10, SIZE, torch.float64)
        for stored in (*self.kv.k_pages, *self.kv.v_pages):
            stored.copy_(torch.arange(10)[:, None, None, None].expand_as(stored))
        self.head = HeadSlots.allocate(SlotState(2, 40, SIZE), 8, 10, 4, one_layer, torch.float64)
        self.head.stops[0] = stop
        self.head.gaps[0] = torch.tensor(gap)

    def exchange(self, owned: int = 1) -> None:
        take_along(self.head, self.kv, torch.tensor([[0], [1], [OLD], [TWIN], [owned]]))

    @property
    def twin(self) -> list[float]:
        """What each place of the twin holds: the number of the page it comes from."""
        return self.kv.k_pages[0][TWIN, 0, :, 0].tolist()

    @property
    def read(self) -> tuple[int, list[int]]:
        return int(self.head.stops[0]), self.head.gaps[0].tolist()


def test_a_page_that_was_read_whole_goes_along() -> None:
    slot = Slot(stop=9)
    slot.exchange()
    assert slot.twin == [OLD] * 4
    assert slot.head.marks[TWIN] == 1
    assert slot.read == (9, [0, 0])


@pytest.mark.parametrize(("stop", "gap", "copied"), [(6, (0, 0), [4, 5]), (9, (2, 6), [6, 7]), (4, (0, 0), [])])
def test_of_a_page_that_was_read_in_part_that_part_goes_along(stop: int, gap: tuple, copied: list[int]) -> None:
    slot = Slot(stop, gap)
    slot.exchange()
    assert slot.twin == [OLD if place in copied else TWIN for place in range(4, 8)]
    assert slot.head.marks[TWIN] == 0
    assert slot.read == (stop, list(gap))


def test_a_twin_that_was_read_is_left_alone() -> None:
    slot = Slot(stop=9)
    slot.head.marks[TWIN] = 1
    slot.exchange(owned=0)
    assert slot.twin == [TWIN] * 4
    assert slot.read == (9, [0, 0])


@pytest.mark.parametrize(
    ("stop", "gap", "left"),
    [(9, (0, 0), (9, [4, 8])), (6, (0, 0), (8, [4, 8])), (9, (2, 3), (9, [2, 8])), (4, (0, 0), (4, [0, 0]))],
)
def test_what_another_has_written_over_is_lost_to_the_slot(stop: int, gap: tuple, left: tuple) -> None:
    slot = Slot(stop, gap)
    slot.exchange(owned=0)
    assert slot.twin == [TWIN] * 4
    assert slot.head.marks[TWIN] == 0
    assert slot.read == left


def test_what_depends_on_a_gap_is_not_shared() -> None:
    slot = Slot(stop=9, gap=(2, 3), one_layer=False)
    slot.exchange()
    assert slot.twin == [TWIN] * 4
    assert slot.read == (9, [2, 8])
    whole = Slot(stop=9, one_layer=False)
    whole.exchange()
    assert whole.twin == [OLD] * 4
