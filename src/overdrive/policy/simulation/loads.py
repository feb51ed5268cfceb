"""Who asks for what, and when: requests of a simulated run, pure functions of how far it has come.

Knows lengths and times. Must never know costs, acceptance or a controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from overdrive.errors import OverdriveError
from overdrive.policy.simulation.costs import Machine

KINDS_OF_LENGTH = 4096
"""Lengths are drawn once for so many requests, and then again in the same order."""

RAMP = (1, 2, 4, 8, 16, 32, 64, 128, 250)


class Load(Protocol):
    """What a run has to do. Requests are numbered from 0 in order of arrival."""

    @property
    def name(self) -> str: ...

    @property
    def work(self) -> int:
        """Output tokens after which the run is over."""
        ...

    def lengths(self, request: int) -> tuple[int, int]:
        """Tokens of its prompt and of its answer."""
        ...

    def due(self, clock: float, made: int, inside: int, taken: int) -> int:
        """How many requests arrive now: at `clock` seconds, after `made` output tokens, with `inside` unfinished
        requests of the `taken` that came before."""
        ...

    def arrival(self, request: int, clock: float) -> float:
        """When it came, if it is taken in at `clock`; for a request that has not come yet, when it will."""
        ...


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients that each send their next request when the last one is answered.

    stages: (clients, output tokens) in turn: so many clients until so many tokens more are made. Where there are fewer
    than before, the surplus ones still hear their answers out. sizes: [n, 2] lengths of prompts and answers in turn.
    """

    name: str
    stages: tuple[tuple[int, int], ...]
    sizes: NDArray[np.int64]

    @property
    def work(self) -> int:
        return sum(tokens for _, tokens in self.stages)

    def lengths(self, request: int) -> tuple[int, int]:
        prompt, output = self.sizes[request % len(self.sizes)]
        return int(prompt), int(output)

    def due(self, clock: float, made: int, inside: int, taken: int) -> int:
        ends = accumulate(tokens for _, tokens in self.stages)
        clients = next((n for (n, _), end in zip(self.stages, ends, strict=True) if made < end), 0)
        return max(0, clients - inside)

    def arrival(self, request: int, clock: float) -> float:
        return clock


@dataclass(frozen=True, slots=True)
class Recorded:
    """Requests at recorded times. times: [n] seconds from the first, rising. sizes: [n, 2] prompts and answers."""

    name: str
    times: NDArray[np.float64]
    sizes: NDArray[np.int64]

    @property
    def work(self) -> int:
        return int(self.sizes[:, 1].sum())

    def lengths(self, request: int) -> tuple[int, int]:
        prompt, output = self.sizes[request]
        return int(prompt), int(output)

    def due(self, clock: float, made: int, inside: int, taken: int) -> int:
        return int(np.searchsorted(self.times, clock, side="right")) - taken

    def arrival(self, request: int, clock: float) -> float:
        return float(self.times[request]) if request < len(self.times) else np.inf


def steady(machine: Machine, clients: int, steps: int) -> Clients:
    """The same number of clients all along; `steps` plain steps of work."""
    return Clients(f"steady:{clients}", ((clients, clients * steps),), draw_sizes(machine))


def ramp(machine: Machine, steps: int, most: int = RAMP[-1]) -> Clients:
    """1 client, then more, up to `most`, and back; at each of these loads `steps` plain steps of work."""
    most = min(most, machine.max_rows)
    up = [clients for clients in RAMP if clients < most] + [most]
    stages = tuple((clients, clients * steps) for clients in up + up[-2::-1])
    return Clients("ramp", stages, draw_sizes(machine))


def draw_sizes(machine: Machine, seed: int = 0) -> NDArray[np.int64]:
    """[n, 2] lengths, even between half and one and a half of the machine's usual ones."""
    spread = np.random.default_rng(seed).uniform(0.5, 1.5, (KINDS_OF_LENGTH, 2))
    return np.maximum(1, spread * (machine.prompt, machine.output)).astype(np.int64)


def parse_load(text: str, machine: Machine, steps: int) -> Clients:
    """steady:N clients, or ramp; `steps`: plain steps of work at each load. Raises OverdriveError for anything else."""
    name, _, value = text.partition(":")
    if name == "steady" and value.isdecimal() and int(value) > 0:
        return steady(machine, int(value), steps)
    if text == "ramp":
        return ramp(machine, steps)
    raise OverdriveError(f"unknown load {text!r}; there are steady:N (clients), ramp, or the path of a recorded trace")
