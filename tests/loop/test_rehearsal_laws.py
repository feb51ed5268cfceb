"""Timing steps before serving leaves no trace: the same answers, all pages free, nothing cached."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from overdrive.device.costs import CostSizes, NoRoom, assumed_costs, measure_costs
from overdrive.device.rehearsal import Rehearsal
from overdrive.device.stream import InlineStream, ThreadStream
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request

from .bench import Bench, RandomDrafts
from .padded_engine import choices, padded_bench
from .test_engine_laws import check, random_requests
from .tiny_drafters import DRAFTERS
from .tiny_engine import VOCAB, tiny_bench

PAGES = 200
MakeBench = Callable[[], Bench]


def sizes(**given) -> CostSizes:
    usual = {"rows": (1, 4), "most_tokens": 16, "short": 8, "long": 32, "texts": 2, "long_rows": 4}
    return CostSizes(**{**usual, "seconds": 60.0, "padded": False, **given})


def rehearse(b: Bench, given: CostSizes, plans: tuple[int, ...] = (1, 3), lookahead: int = 0):
    rehearsal = Rehearsal(b.runner, b.scheduler.limits, PAGES, VOCAB, lookahead, given.padded)
    return measure_costs(rehearsal, given, plans, lambda done, total: None).table


def answer(b: Bench, requests: list[Request]) -> None:
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    check(b, requests)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_are_the_same_after_costs_were_measured(drafter: str) -> None:
    rng = random.Random(1)
    b = tiny_bench(InlineStream(), RandomDrafts(rng), DRAFTERS[drafter], n_pages=PAGES)
    before = b.scheduler.pool.available
    rehearse(b, sizes())
    assert b.scheduler.pool.available == before
    assert not b.scheduler.pool.idle  # nothing is kept for later requests to find
    answer(b, random_requests(rng, 5))


@pytest.mark.parametrize("drafter", ["ngram", "eagle3", "small", "ngram+eagle3"])
def test_answers_are_the_same_after_costs_of_padded_steps_were_measured(drafter: str) -> None:
    rng = random.Random(2)
    b = padded_bench(InlineStream(), RandomDrafts(rng), choices()[drafter], n_pages=PAGES)
    rehearse(b, sizes(padded=True), lookahead=1)
    answer(b, random_requests(rng, 5))


def test_every_k_of_padded_steps_has_costs_of_its_own() -> None:
    b = padded_bench(InlineStream(), FixedDrafts(3), choices()["eagle3"], n_pages=PAGES)
    found = rehearse(b, sizes(padded=True), lookahead=1).decode
    assert found is not None
    assert [k for k in range(5) if found.knows(k)] == [0, 1, 3]
    assert 0 < found.rest(3, 1, 8) <= found.rest(3, 4, 8) <= found.rest(3, 4, 1000)
    assert found.drafting(0, 4, 1000) == 0


def test_steps_that_feed_what_rows_have_are_told_by_their_tokens() -> None:
    b = tiny_bench(InlineStream(), FixedDrafts(3), DRAFTERS["eagle3"], n_pages=PAGES)
    assert rehearse(b, sizes()).decode is None


def test_drafts_are_accepted_as_often_after_costs_were_measured() -> None:
    """What a drafter knows of slots and pages is what it knew before."""

    def rounds(measured: bool) -> list[int]:
        b = tiny_bench(InlineStream(), FixedDrafts(3), DRAFTERS["eagle3"], n_pages=PAGES)
        if measured:
            rehearse(b, sizes())
        answer(b, random_requests(random.Random(4), 5))
        return b.committer._counts.accepted.tolist()

    assert rounds(True) == rounds(False)


def test_steps_under_way_are_timed_too() -> None:
    stream = ThreadStream()
    b = tiny_bench(stream, FixedDrafts(3), DRAFTERS["ngram"], n_pages=PAGES)
    rehearse(b, sizes(), lookahead=1)
    answer(b, random_requests(random.Random(5), 4))
    stream.close()


def test_where_nothing_fits_that_is_said_in_one_line() -> None:
    b = tiny_bench(InlineStream(), FixedDrafts(3), DRAFTERS["ngram"], n_pages=PAGES, max_model_len=12)
    with pytest.raises(NoRoom, match="costs cannot be measured"):
        rehearse(b, sizes())


def test_what_is_assumed_instead_grows_with_tokens_and_drafts() -> None:
    table = assumed_costs((1, 3, 5))
    assert 0 < table.step(1, 0) < table.step(32, 0) < table.step(600, 0)
    assert 0 < table.draft(1, 4) < table.draft(5, 4) < table.step(1, 0)
