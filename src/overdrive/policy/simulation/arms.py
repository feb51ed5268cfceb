"""Controllers by name, and the tables that they would have measured on a simulated machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from overdrive.errors import OverdriveError
from overdrive.policy.baselines import Aimd, EmaLadder, Off
from overdrive.policy.controller import Controller, FixedDrafts
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox
from overdrive.policy.simulation.acceptance import MOST
from overdrive.policy.simulation.costs import Machine
from overdrive.policy.simulation.truth import PLANS, Oracle, Truth

LADDER = (4, 8, 16, 32, 64)
"""Rows up to which the ladder drafts 7, 5, 3, 2 and 1."""

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Arm = Callable[[Truth], Controller]


def parse_arm(name: str, machine: Machine) -> Arm:
    """auto, off, fixed:K, ladder, aimd or oracle. Raises OverdriveError for anything else."""
    arms: dict[str, Arm] = {
        "auto": lambda truth: gearbox(machine),
        "off": lambda truth: Off(),
        "ladder": lambda truth: EmaLadder(PLANS, LADDER),
        "aimd": lambda truth: Aimd(PLANS),
        "oracle": lambda truth: Oracle(truth),
    }
    kind, _, value = name.partition(":")
    if kind == "fixed" and value.isdecimal() and int(value) <= MOST:
        return lambda truth: FixedDrafts(int(value))
    if name not in arms:
        raise OverdriveError(f"unknown controller {name!r}; there are {', '.join(arms)}, fixed:K (K up to {MOST})")
    return arms[name]


def gearbox(machine: Machine, plans: Sequence[int] = PLANS) -> Gearbox:
    """The gear box as a server on this machine would start it."""
    return Gearbox(measure(machine), AcceptanceEstimator(("draft",), max(plans)), plans)


def measure(machine: Machine) -> CostTable:
    """What a server measures at its start: plain steps of each size at a few contexts, and drafting step after step,
    about two tokens a row to catch up on. That reading a context costs more with K > 0 is left to be learnt."""
    sizes, rows = machine.sizes, [n for n in ROWS if n <= machine.max_rows]
    contexts = [part * (machine.max_rows * (machine.prompt + machine.output) // 4) for part in (0, 1, 4)]
    seconds = machine.step(np.array(sizes)[:, None], np.array(contexts), 0)
    drafting = machine.draft(np.array(PLANS)[:, None], np.array(rows), 2 * np.array(rows))
    return CostTable(sizes, contexts, seconds, rows, PLANS, drafting, padded_to=sizes[-1])
