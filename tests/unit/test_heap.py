"""What was loaded before the first request is set aside; what has become garbage since is not kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from overdrive.heap import freeze_heap


class Knot:
    """An object that only a collection can free."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_a_full_collection_looks_at_nothing_that_was_there_before(thawed: None) -> None:
    gc.collect()  # garbage of other tests is not set aside
    before = len(gc.get_objects())
    freeze_heap()
    assert gc.get_freeze_count() > 0.9 * before
    assert len(gc.get_objects()) < 0.1 * before


def test_what_was_set_aside_and_became_garbage_is_collected_the_next_time(thawed: None) -> None:
    knot = Knot()
    seen = weakref.ref(knot)
    freeze_heap()
    del knot
    gc.collect()
    assert seen() is not None
    freeze_heap()
    assert seen() is None
