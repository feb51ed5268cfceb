"""Grammars are tried in turns: what takes little is not held up by what takes long, however much of that there is."""

from __future__ import annotations

import pytest

from overdrive.grammar.levels import LEVELS, Job, Level, Turns

CORES = 2
TICK = 0.001


class Simulated:
    """A vetter in simulated time: its children share the cores by their weights, as Linux has them for each nice.

    It has nothing in common with a clock or a process, so it is the same every time.
    """

    def __init__(self, levels: tuple[Level, ...]) -> None:
        self.turns, self.now = Turns(levels), 0.0
        self.running: dict[int, tuple[Job, float]] = {}  # and the seconds that it still has
        self.needs: list[float] = []
        self.verdicts: dict[int, tuple[float, bool]] = {}  # when, and whether it passed

    def ask(self, seconds: float) -> int:
        """A grammar that needs so much of a processor; its number."""
        self.needs.append(seconds)
        self.turns.add(Job(len(self.needs) - 1, "", "", until=float("inf")))
        return len(self.needs) - 1

    def run(self, until: float = float("inf")) -> None:
        """Until then, or until all have their verdicts."""
        while len(self.verdicts) < len(self.needs) and self.now < until:
            for job in self.turns.begin():
                self.running[job.number] = job, min(self.needs[job.number], self.turns.levels[job.level].seconds)
            weights = {n: 1.25 ** -self.turns.levels[job.level].nice for n, (job, _) in self.running.items()}
            whole = max(sum(weights.values()), max(weights.values()) * CORES)
            self.now += TICK
            for number, weight in weights.items():
                job, left = self.running[number]
                self.running[number] = job, left - TICK * CORES * weight / whole
                if self.running[number][1] <= 0:
                    self._ended(job)

    def _ended(self, job: Job) -> None:
        del self.running[job.number]
        enough = self.needs[job.number] <= self.turns.levels[job.level].seconds
        self.turns.end(job)
        if enough or not self.turns.advance(job):
            self.verdicts[job.number] = self.now, enough


CROWD = 60


@pytest.mark.parametrize("seconds", [0.005, 0.025, 0.06, 0.2])
def test_what_compiles_quickly_does_not_wait_for_what_does_not(seconds: float) -> None:
    """Each of the crowd is within its limits and came before. It costs the one behind it a few times what that needs
    itself, not what the crowd needs, and not more the slower the crowd is."""
    waits = []
    for slow in (0.7, 4.9):
        vetter = Simulated(LEVELS)
        for _ in range(CROWD):
            vetter.ask(slow)
        quick = vetter.ask(seconds)
        while quick not in vetter.verdicts:
            vetter.run(vetter.now + 0.1)
        waits.append(vetter.verdicts[quick][0])
    assert max(waits) < 5 * seconds * (CROWD + 1)
    assert waits[1] < 1.5 * waits[0]


def test_what_compiles_quickly_does_not_wait_where_the_crowd_never_ends() -> None:
    """New ones come as fast as they are begun with: one that needs two levels is there all the same."""
    vetter = Simulated(LEVELS)
    for _ in range(20):
        vetter.ask(4.9)
    quick = vetter.ask(0.025)
    while quick not in vetter.verdicts and vetter.now < 20:
        vetter.ask(4.9)
        vetter.run(vetter.now + 0.04)
    assert vetter.verdicts[quick][0] < 5


def test_everyone_has_a_verdict_by_what_it_needs() -> None:
    vetter = Simulated(LEVELS)
    asked = {vetter.ask(seconds): seconds for seconds in (4.0, 6.0, 0.005, 0.02, 0.1, 0.5, 1.5, 5.5)}
    vetter.run()
    assert {number: passed for number, (_, passed) in vetter.verdicts.items()} == {
        number: seconds <= LEVELS[-1].seconds for number, seconds in asked.items()
    }


def test_a_whole_queue_passes_the_first_level_in_time() -> None:
    """1,024 hostile grammars and one that is none, which has 20 seconds."""
    vetter = Simulated(LEVELS)
    for _ in range(1024):
        vetter.ask(5.0)
    quick = vetter.ask(0.005)
    vetter.run(20.0)
    assert quick in vetter.verdicts


def test_a_level_is_never_fuller_than_it_may_be() -> None:
    turns = Turns((Level(1.0, 2, 0), Level(2.0, 1, 0)))
    for number in range(5):
        turns.add(Job(number, "", "", until=number))
    first, second = turns.begin()
    assert turns.begin() == []
    turns.end(first)
    assert turns.advance(first)
    assert [(job.number, job.level) for job in turns.begin()] == [(2, 0), (0, 1)]
    turns.end(first)
    assert not turns.advance(first)
    turns.end(second)
    assert [job.number for job in turns.give_up(3.5)] == [3]
    assert [job.number for job in turns.begin()] == [4]


def test_levels_give_more_time_and_less_of_a_processor() -> None:
    assert [level.seconds for level in LEVELS] == sorted({level.seconds for level in LEVELS})
    assert [level.nice for level in LEVELS] == sorted({level.nice for level in LEVELS})
