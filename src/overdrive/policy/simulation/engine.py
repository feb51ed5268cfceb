"""The events of a simulated run: arrivals, steps with one launched ahead, outcomes, ends.

Knows the order in which an overlapped engine acts: a step is planned while the one before it runs, so a controller sees
outcomes that are one step old, and a row whose answer has just ended may be fed once more for nothing. Must never know
how a controller decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overdrive.policy.controller import Controller
from overdrive.policy.simulation.acceptance import MOST, Acceptance
from overdrive.policy.simulation.costs import Machine
from overdrive.policy.simulation.loads import Load
from overdrive.policy.simulation.luck import accepted, kind_of
from overdrive.policy.simulation.record import Run
from overdrive.policy.simulation.rows import WINDOW, Rows
from overdrive.policy.simulation.truth import Situation, Truth
from overdrive.policy.simulation.view import view_of
from overdrive.types import Outcome, Plan, Row, Step, Why

IDLE = Plan(0, Why(rule="idle"))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What no controller can change. noise: deviation of a step's seconds, as a share of them. seed: of all chance."""

    machine: Machine
    acceptance: Acceptance
    load: Load
    noise: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step will hold. decode: [n] slots of its decode rows. drafts: [n] of each. chunks: prompt rows.

    context: tokens that the decode rows attend to.
    """

    decode: NDArray[np.int64]
    drafts: NDArray[np.int64]
    chunks: list[Row]
    context: int

    @property
    def tokens(self) -> int:
        """Fed to the target."""
        return len(self.decode) + int(self.drafts.sum()) + sum(row.known for row in self.chunks)


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step. slots, requests: [rows] of its rows. useful: [rows] tokens that their answers take.

    ended: clock at its end.
    """

    step: Step
    outcome: Outcome
    slots: NDArray[np.int64]
    requests: NDArray[np.int64]
    useful: NDArray[np.int64]
    ended: float


def play(world: World, arm: Callable[[Truth], Controller]) -> Run:
    """The whole of `world` under one controller. arm: makes it; only an oracle looks at what it is given."""
    return Engine(world, arm).run()


class Engine:
    """One run. Seconds are simulated."""

    def __init__(self, world: World, arm: Callable[[Truth], Controller]) -> None:
        self._world = world
        self._truth = Truth(world.machine)
        self._controller = arm(self._truth)
        self._rows = Rows(world.machine.max_rows)
        self._waiting: deque[int] = deque()
        self._noise = np.random.default_rng(world.seed)
        self._clock = self._heard = 0.0  # end of the last launched step, and of the last settled one
        self._taken = self._made = self._steps = self._finished = 0
        self._run = Run()

    def run(self) -> Run:
        """Everything from the first arrival until the work is done. Tokens of steps beyond it are not counted."""
        flight: Flight | None = None
        while self._made < self._world.load.work:
            self._admit()
            launched = self._launch()
            if launched is None and flight is None:
                self._clock = self._heard = self._world.load.arrival(self._taken, self._clock)
            if flight is not None:
                self._settle(flight)
            flight = launched
        return self._run

    # -- requests --------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Take in who has come, and give slots to as many as there are."""
        load = self._world.load
        inside = self._taken - self._finished
        for _ in range(load.due(self._heard, self._made, inside, self._taken)):
            self._run.arrive(load.arrival(self._taken, self._heard))
            self._waiting.append(self._taken)
            self._taken += 1
        while self._waiting and not self._rows.full:
            request = self._waiting.popleft()
            kind = kind_of(self._world.seed, request, self._world.acceptance.weights)
            self._rows.admit(request, kind, *load.lengths(request), self._world.acceptance.sampled[kind])

    # -- a step ----------------------------------------------------------------------------------------------------

    def _launch(self) -> Flight | None:
        """Plan the next step and let it run, or None where no row can."""
        decode, prompts = self._rows.decoding(), self._rows.prefilling()
        if not len(decode) + len(prompts):
            return None
        wanted = int((self._rows.prompt - self._rows.fed)[prompts].sum())
        context = int((self._rows.prompt + self._rows.made)[decode].sum())
        rates = self._world.acceptance.rates(self._made / self._world.load.work)
        plan = self._plan(decode, wanted, context, rates)
        batch = self._batch(plan, decode, prompts, wanted, context)
        return self._fly(plan, batch, rates)

    def _plan(self, decode: NDArray[np.int64], wanted: int, context: int, rates: NDArray[np.float64]) -> Plan:
        """Ask the controller, after telling the truth to those who judge."""
        prefill = min(wanted, self._world.machine.max_step_tokens - len(decode))
        if len(decode):
            self._truth.now = Situation(
                self._world.machine,
                kinds=np.bincount(self._rows.kind[decode], minlength=len(rates)),
                rates=rates,
                context=context,
                prefill=prefill,
                behind=int(np.minimum(self._rows.behind[decode], WINDOW).sum()),
                left=int((self._rows.output - self._rows.made)[decode].sum()),
            )
        plan = self._controller.choose(view_of(self._rows, decode, prefill, self._world.acceptance.sampled))
        return plan if len(decode) else IDLE

    def _batch(
        self, plan: Plan, decode: NDArray[np.int64], prompts: NDArray[np.int64], wanted: int, context: int
    ) -> Batch:
        """As much of the plan as the step's tokens allow, decode rows first, then prompts, oldest request first."""
        rows, machine = self._rows, self._world.machine
        room = machine.max_step_tokens - min(wanted, machine.chunk)
        k = max(0, min(plan.drafts, MOST, room // len(decode) - 1)) if len(decode) else 0
        drafts = np.clip(rows.most_drafts(decode), 0, k)
        if plan.most_rows >= 0:
            rows.keep_plain(decode, drafts, plan.most_rows)
        left = machine.max_step_tokens - len(decode) - int(drafts.sum())
        chunks = []
        for slot in prompts.tolist():
            known = min(int(rows.prompt[slot] - rows.fed[slot]), machine.chunk, left)
            if known < 1:
                break
            left -= known
            chunks.append(rows.prompt_row(slot, known))
        return Batch(decode, drafts, chunks, context)

    def _fly(self, plan: Plan, batch: Batch, rates: NDArray[np.float64]) -> Flight:
        """Let the step take its time and make its tokens. rates: [kinds, MOST] true chances."""
        rows, decode, drafts = self._rows, batch.decode, batch.drafts
        slots = np.concatenate((decode, np.array([row.slot for row in batch.chunks], np.int64)))
        emits = np.array([1] * len(decode) + [int(row.emits) for row in batch.chunks], np.int64)
        offered, counts = np.zeros_like(slots), emits.copy()
        offered[: len(decode)] = drafts
        counts[: len(decode)] += accepted(
            self._world.seed, rows.request[decode], rows.made[decode], drafts, rates[rows.kind[decode]]
        )
        self._steps += 1
        admissions = rows.admissions(row.slot for row in batch.chunks)
        step = Step(self._steps, (*rows.decode_rows(decode, drafts), *batch.chunks), plan, admissions)
        tokens = np.broadcast_to(np.int64(0), (len(slots), int(drafts.max(initial=0)) + 1))
        draft, forward = self._seconds(batch)
        outcome = Outcome(tokens, counts, offered, np.zeros_like(slots), seconds=(draft, forward, 0.0, 0.0))
        return self._make(step, outcome, slots, len(decode))

    def _seconds(self, batch: Batch) -> tuple[float, float]:
        """Seconds of drafting and of the target's pass, by the true costs and this step's noise.

        The drafter catches up on what its rows lack, as far back as it keeps.
        """
        machine, drafting = self._world.machine, batch.decode[batch.drafts > 0]
        k = int(batch.drafts.max(initial=0))
        lacking = int(np.minimum(self._rows.behind[drafting], WINDOW).sum())
        self._rows.behind[drafting] = 0
        factor = float(np.exp(self._world.noise * self._noise.standard_normal()))
        draft = machine.draft(k, len(drafting), lacking)
        return factor * float(draft), factor * float(machine.step(batch.tokens, batch.context, k))

    def _make(self, step: Step, outcome: Outcome, slots: NDArray[np.int64], decode_rows: int) -> Flight:
        """The device's side of the outcome, at the end of its seconds. Tokens behind an answer's end do not count."""
        rows, seconds = self._rows, sum(outcome.seconds)
        useful = np.minimum(outcome.counts, (rows.output - rows.made)[slots])
        requests = rows.request[slots]
        self._clock += seconds
        k = min(step.plan.drafts, MOST)
        loss = self._truth.now.loss(k) if decode_rows and self._world.acceptance.flips else 0.0
        done = self._made / self._world.load.work
        self._run.step(
            k if decode_rows else -1, step.plan.why.rule, decode_rows, int(useful.sum()), seconds, done, loss
        )
        self._run.tell(requests, rows.made[slots], useful, rows.output[slots], self._clock)
        rows.launch(slots, useful, outcome)
        self._made += int(useful.sum())
        return Flight(step, outcome, slots, requests, useful, self._clock)

    def _settle(self, flight: Flight) -> None:
        """The outcome reaches the host: the controller learns, ended requests leave."""
        rows = self._rows
        self._controller.observe(flight.step, flight.outcome)
        self._heard = flight.ended
        stay = rows.request[flight.slots] == flight.requests  # not those who left while this step was in flight
        stay &= flight.outcome.counts > 0
        slots = flight.slots[stay]
        rows.land(slots, flight.useful[stay], flight.outcome.offered[stay])
        for slot in slots[rows.told[slots] >= rows.output[slots]].tolist():
            rows.leave(slot)
            self._finished += 1
