"""Laws about the laws: each of the loop's subtle rules, broken on purpose, must make the random schedules fail."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from overdrive.commit import Committer
from overdrive.errors import HostFault
from overdrive.request import Running
from overdrive.scheduler import Scheduler

from .test_loop_laws import one_random_schedule


def page_bound_ignores_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Running, "upper_len", property(lambda self: len(self.request.tokens)))


def page_bound_is_one_short(patch: pytest.MonkeyPatch) -> None:
    bound = Scheduler._bound
    patch.setattr(Scheduler, "_bound", lambda self, *args: bound(self, *args) - 1)


def finished_rows_in_flight_are_not_dropped(patch: pytest.MonkeyPatch) -> None:
    landed = Scheduler.land

    def land(self: Scheduler, step):
        flown = landed(self, step)
        for running in flown:
            running.request.finish = None
        return flown

    patch.setattr(Scheduler, "land", land)


def the_newest_token_is_donated(patch: pytest.MonkeyPatch) -> None:
    """Its KV is not stored yet, and where it lies another request would read it."""

    def donate(self: Committer, running: Running) -> None:
        cache = self._scheduler.cache
        if cache is not None and running.stored >= running.target:
            full = len(running.request.tokens) // cache.page_size
            full = min(full, len(running.pages))
            if full > running.donated:
                for index in cache.donate(running.request.tokens, running.pages, running.donated, full):
                    running.exchange(index)
                running.donated = full

    patch.setattr(Committer, "_donate", donate)


def preemption_takes_pages_from_a_row_in_flight(patch: pytest.MonkeyPatch) -> None:
    def preempt(self: Scheduler) -> None:
        victims = [r for r in list(self.running.values())[1:] if not r.leaving]
        if victims:
            self.preemptions += 1
            victims[-1].leaving = True
            self._leave(victims[-1])
            self.waiting.insert(0, victims[-1].request)

    patch.setattr(Scheduler, "_preempt_youngest", preempt)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    page_bound_ignores_what_is_in_flight,
    page_bound_is_one_short,
    finished_rows_in_flight_are_not_dropped,
    the_newest_token_is_donated,
    preemption_takes_pages_from_a_row_in_flight,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_random_schedules_notice(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError, HostFault)):
        for seed in range(600):
            one_random_schedule(random.Random(seed))
