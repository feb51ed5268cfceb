"""How long tests wait. For what has to happen: until it does, far longer than any machine needs. For what depends on a
machine being quick: with times that grow until it is quick enough."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds for what takes a fraction of one on a machine that has nothing else to do."""


def wait_until(fact: Callable[[], object], missing: str = "nothing happened") -> None:
    """Returns as soon as it is so. Fails where it still is not after `PATIENCE`, saying what is missing."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline, missing
        time.sleep(0.005)


def within(seconds: float, trial: Callable[[float], bool]) -> bool:
    """Whether a trial succeeds that has to do something within `seconds`, or ten or a hundred times as many where the
    machine was too busy for that."""
    return any(trial(factor * seconds) for factor in (1, 10, 100))
