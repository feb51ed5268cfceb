"""Small simulated worlds."""

from __future__ import annotations

import numpy as np

from overdrive.policy.simulation.acceptance import Acceptance, parse_acceptance
from overdrive.policy.simulation.costs import MACHINES, Machine
from overdrive.policy.simulation.engine import World
from overdrive.policy.simulation.loads import Clients, Recorded, parse_load

ALWAYS = parse_acceptance("imposed:1,1,1,1,1,1,1")
NEVER = parse_acceptance("imposed:0")

PLAIN = Machine(
    name="plain",
    sizes=(1, 2, 4, 8),
    products=(1.0, 1.0, 2.0, 4.0),
    floor=10.0,
    context=0.0,
    query=0.0,
    pass_floor=0.5,
    pass_share=0.0,
    max_rows=2,
    chunk=4,
    max_step_tokens=8,
    prompt=4,
    output=4,
)
"""Seconds that can be added up by hand: 10, more by tokens, and half a second for each draft."""


def recorded(*requests: tuple[float, int, int]) -> Recorded:
    """(arrival, prompt, output) of each."""
    times, prompts, outputs = zip(*requests, strict=True)
    return Recorded("by hand", np.array(times, float), np.array((prompts, outputs), np.int64).T)


def clients(stages: tuple[tuple[int, int], ...], prompt: int, output: int) -> Clients:
    """(clients, tokens) in turn, all requests alike."""
    return Clients("by hand", stages, np.array([[prompt, output]]))


def world(machine: str, load: str, acceptance: str = "stationary:0.7", steps: int = 300, noise: float = 0.05) -> World:
    """By the names of the command line."""
    found = MACHINES[machine]
    return World(
        machine=found, acceptance=parse_acceptance(acceptance), load=parse_load(load, found, steps), noise=noise
    )


def by_hand(load: Clients | Recorded, acceptance: Acceptance) -> World:
    """Of the plain machine."""
    return World(machine=PLAIN, acceptance=acceptance, load=load)
