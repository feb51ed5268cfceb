"""What the best plan of a step was, from the true costs and chances. Only the simulator knows this.

Symbols as in a controller: K drafts a row, expected tokens E_K, seconds S_K of a step with K.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overdrive.policy.controller import Controller, LoadView
from overdrive.policy.simulation.acceptance import MOST
from overdrive.policy.simulation.costs import Machine
from overdrive.types import Plan, Why

PLANS = (1, 2, 3, 5, 7)
"""Ks beside 0 that controllers choose from."""

ALL = np.arange(MOST + 1)
"""Every K."""


class Truth:
    """The situation of the step to be planned. machine: true costs.

    A token is worth the seconds it takes to make one under the best K, prompts apart: every answer brings its prompt
    with it, whatever K makes it. The ratio E / S of a single step would mislead where a prompt's chunk shares it, and a
    throughput that counts the time of prompts would make time look cheap (after Dinkelbach 1967).
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._gains = np.zeros(MOST + 1)
        self.pays = False  # whether drafts will have paid for catching up before the rows end
        self._seconds = np.ones(MOST + 1)

    def see(
        self, kinds: NDArray[np.int64], rates: NDArray[np.float64], context: int, prefill: int, behind: int, left: int
    ) -> None:
        """kinds: [kinds] decode rows of each. rates: [kinds, MOST] their chances. context, prefill: tokens.

        behind: tokens that the drafter lacks of these rows. left: tokens until all of them end.
        """
        rows = int(kinds.sum())
        survival = np.cumprod(rates, axis=1)
        expected = rows + np.concatenate(([0.0], np.cumsum(kinds @ survival)))  # [MOST + 1]
        drafting = self._machine.draft(ALL, rows, expected)
        alone = drafting + self._machine.step(rows * (1 + ALL), context, ALL)
        worth = float(np.min(alone / expected))  # seconds per token
        self._seconds = drafting + self._machine.step(rows * (1 + ALL) + prefill, context, ALL)
        self._gains = expected * worth - self._seconds  # seconds
        catching_up = float(self._machine.draft(1, rows, behind) - self._machine.draft(1, rows, expected[1]))
        steady = expected * worth - alone
        ahead = float(steady.max() - steady[0]) * left / float(expected[np.argmax(steady)])
        self.pays = float(self._gains.max() - self._gains[0]) + ahead > catching_up

    @property
    def best(self) -> int:
        """The best of PLANS and 0."""
        allowed = (0, *PLANS)
        return allowed[int(np.argmax(self._gains[list(allowed)]))]

    def loss(self, drafts: int) -> float:
        """Share of the step that a plan of `drafts` wastes against the best of PLANS and 0; below 0 if better."""
        best = self.best
        return float((self._gains[best] - self._gains[drafts]) / self._seconds[best])


class Oracle(Controller):
    """Plans each step by the truth, ends of answers included: what no server can do."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    @property
    def plans(self) -> Sequence[int]:
        return PLANS

    def choose(self, view: LoadView) -> Plan:
        drafts = self._truth.best if view.decode_rows and self._truth.pays else 0
        return Plan(drafts, Why(rule="oracle"))
