"""What the best plan of a step was, from the true costs and chances. Only the simulator knows this.

Symbols as in a controller: K drafts a row, expected tokens E_K, seconds S_K of a step with K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from overdrive.policy.controller import Controller, LoadView
from overdrive.policy.setting import USUAL
from overdrive.policy.simulation.acceptance import MOST
from overdrive.policy.simulation.costs import Machine
from overdrive.types import Plan, Why

PLANS = USUAL
"""Ks beside 0 that controllers choose from: those that a server offers."""

ALL = np.arange(MOST + 1)
"""Every K."""


@dataclass(frozen=True)
class Situation:
    """The step to be planned, as it truly is; weighed when somebody asks, since most controllers never do.

    kinds: [kinds] decode rows of each kind. rates: [kinds, MOST] their chances. context, prefill: tokens.
    behind: tokens that the drafter lacks of these rows. left: tokens until all of them end.

    A token is worth the seconds it takes to make one under the best K, prompts apart: every answer brings its prompt
    with it, whatever K makes it. The ratio E / S of a single step would mislead where a prompt's chunk shares it, and a
    throughput that counts the time of prompts would make time look cheap (after Dinkelbach 1967).
    """

    machine: Machine
    kinds: NDArray[np.int64]
    rates: NDArray[np.float64]
    context: int
    prefill: int
    behind: int
    left: int

    @property
    def rows(self) -> int:
        return int(self.kinds.sum())

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """[MOST + 1] tokens that a step with each K yields."""
        accepted = np.cumsum(self.kinds @ np.cumprod(self.rates, axis=1))
        return self.rows + np.concatenate(([0.0], accepted))

    @cached_property
    def alone(self) -> NDArray[np.float64]:
        """[MOST + 1] seconds of a step with each K, its prompts left out."""
        return self._step(0)

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """[MOST + 1] seconds of a step with each K, while drafting goes on steadily."""
        return self._step(self.prefill) if self.prefill else self.alone

    def _step(self, prefill: int) -> NDArray[np.float64]:
        target = self.machine.step(self.rows * (1 + ALL) + prefill, self.context, ALL)
        return target + self.machine.draft(ALL, self.rows, self.expected)

    @cached_property
    def gains(self) -> NDArray[np.float64]:
        """[MOST + 1] seconds that the tokens of each K are worth more than it takes."""
        return self.expected * float(np.min(self.alone / self.expected)) - self.seconds

    @property
    def best(self) -> int:
        """The best of PLANS and 0."""
        allowed = (0, *PLANS)
        return allowed[int(np.argmax(self.gains[list(allowed)]))]

    def loss(self, drafts: int) -> float:
        """Share of the step that a plan of `drafts` wastes against the best of PLANS and 0; below 0 if better."""
        best = self.best
        return float((self.gains[best] - self.gains[drafts]) / self.seconds[best])

    @property
    def pays(self) -> bool:
        """Whether drafts will have paid for the drafter's catching up before the rows end."""
        draft, rows = self.machine.draft, self.rows
        catching_up = float(draft(1, rows, self.behind) - draft(1, rows, self.expected[1]))
        rate = self.alone / self.expected  # seconds per token
        return float(self.gains.max() - self.gains[0]) + float(rate[0] - rate.min()) * self.left > catching_up


class Truth:
    """The situation now, for those who may know it."""

    def __init__(self, machine: Machine) -> None:
        nobody = np.zeros(1, np.int64)
        self.now = Situation(machine, nobody, np.zeros((1, MOST)), 0, 0, 0, 0)


class Oracle(Controller):
    """Plans each step by the truth, ends of answers included: what no server can do."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    @property
    def plans(self) -> Sequence[int]:
        return PLANS

    def choose(self, view: LoadView) -> Plan:
        drafts = self._truth.now.best if view.decode_rows and self._truth.now.pays else 0
        return Plan(drafts, Why(rule="oracle"))
