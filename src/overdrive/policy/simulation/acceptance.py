"""How often drafts are right in a simulated run: chances by kind of request, position and share of the work done.

Chances follow the work and not the clock, so that every controller meets the same text. Must never know a controller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overdrive.errors import OverdriveError
from overdrive.policy.imposed import conditional_rates, parse_survival

MOST = 7
"""Most drafts that a simulated step can hold."""

DECLINE = 0.98
"""Each further draft is a little less often right than the one before, as measured of draft networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """marks: [n] shares of the work, rising from 0, at which `levels` hold.

    levels: [n, kinds, MOST] chances p_j that draft j is accepted if those before it were. smooth: they change evenly
    between marks, or at them at once.

    weights: [kinds] how often a request is of a kind; they add up to 1. sampled: kinds that draw their tokens.
    """

    name: str
    marks: tuple[float, ...]
    levels: NDArray[np.float64]
    smooth: bool = False
    weights: tuple[float, ...] = (1.0,)
    sampled: tuple[bool, ...] = (False,)

    def rates(self, done: float) -> NDArray[np.float64]:
        """[kinds, MOST] chances when `done` of the work, 0 to 1, is done."""
        at = int(np.searchsorted(self.marks, done, side="right")) - 1
        if not self.smooth or at + 1 == len(self.marks):
            return self.levels[at]
        part = (done - self.marks[at]) / (self.marks[at + 1] - self.marks[at])
        return (1 - part) * self.levels[at] + part * self.levels[at + 1]

    @property
    def flips(self) -> tuple[float, ...]:
        """Shares of the work at which the chances change at once."""
        return () if self.smooth else self.marks[1:]


def falling(first: float) -> list[float]:
    """p_j from the chance of the first draft on."""
    return [first * DECLINE**j for j in range(MOST)]


def _levels(*marks: tuple[float, ...]) -> NDArray[np.float64]:
    """[marks, kinds, MOST] from the first draft's chance by mark and kind."""
    return np.array([[falling(first) for first in kinds] for kinds in marks])


def parse_acceptance(text: str) -> Acceptance:
    """An acceptance by name, with a value behind a colon where it takes one.

    stationary[:P]: always P (0.7). drift: 0.85 to 0.35 and back, evenly. mixed: half of the requests 0.85, half, which
    draw their tokens, 0.4. flip[:N]: 0.85 and 0.2 in turn, N changes (2). imposed:a1,a2,..: survival, as for serve.
    Raises OverdriveError for anything else.
    """
    name, _, value = text.partition(":")
    if name == "stationary":
        return Acceptance(name=text, marks=(0.0,), levels=_levels((_share(text, value or "0.7"),)))
    if name == "imposed":
        return Acceptance(name=text, marks=(0.0,), levels=np.array([[conditional_rates(parse_survival(value), MOST)]]))
    if name == "flip":
        flips = _count(text, value or "2")
        marks = tuple(i / (flips + 1) for i in range(flips + 1))
        return Acceptance(
            name=text, marks=marks, levels=_levels(*((0.2 if i % 2 else 0.85,) for i in range(flips + 1)))
        )
    if text == "drift":
        return Acceptance(name=text, marks=(0.0, 0.5, 1.0), levels=_levels((0.85,), (0.35,), (0.85,)), smooth=True)
    if text == "mixed":
        levels = _levels((0.85, 0.4))
        return Acceptance(name=text, marks=(0.0,), levels=levels, weights=(0.5, 0.5), sampled=(False, True))
    known = "stationary[:P], drift, mixed, flip[:N] or imposed:a1,a2,.."
    raise OverdriveError(f"unknown acceptance {text!r}; there are {known}")


def _share(text: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise OverdriveError(f"the acceptance {text!r} must name a chance between 0 and 1")
    return share


def _count(text: str, value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 100:
        raise OverdriveError(f"the acceptance {text!r} must name 1 to 100 changes")
    return int(value)
