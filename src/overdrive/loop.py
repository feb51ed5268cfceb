"""The overlap loop: the only place that knows that two steps exist at once.

    host    build n | settle n-1 | publish n-1 | build n+1 | settle n ...
    device  ...  n-1 |  draft n, forward n, accept n, absorb n  | draft n+1 ...

A step with constrained rows is accepted only when their masks are there, for which step n-1 must be settled:

    host    build n | settle n-1 | masks along the drafts of n | publish n-1 | build n+1 ...
    device  ...  n-1 |  draft n, forward n ................. accept n, absorb n  | draft n+1 ...

Where the host is the device, masks come before the forward pass instead: what settling has brought into the caches is
still there, and none of it is behind a pass over all weights.

Nothing in it waits for the device but for the results of the step before the one just launched, and for the drafts of
a masked one, which are older than the forward pass that is running.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from traceback import format_exception_only
from typing import Generic, Protocol, TypeVar

from overdrive.commit import Committer, Delta
from overdrive.errors import HostFault, OutOfDeviceMemory, first_line
from overdrive.grammar.sheet import NO_MASKS, MaskSheet
from overdrive.grammar.walker import Walker
from overdrive.policy.controller import Controller
from overdrive.scheduler import Scheduler
from overdrive.types import Finish, FinishReason, Outcome, Step


class Flight(Protocol):
    """A launched step."""

    @property
    def step(self) -> Step: ...

    def drafted(self) -> Sequence[Sequence[int]]:
        """The drafts of each row of a masked step, once the device has written them. Raises as `wait` does."""
        ...

    def wait(self) -> Outcome:
        """Its results, once the device has them. Raises RuntimeError when a launch failed."""
        ...


F = TypeVar("F", bound=Flight)


class Runner(Protocol[F]):
    """Runs steps on a device: four launches, none of them awaited. `F` is what it calls a launched step.

    sheet: where the masks of a masked step are to be written; it is given back with `accept`.
    """

    def draft(self, step: Step) -> F: ...

    def forward(self, flight: F, /) -> None: ...

    def sheet(self, flight: F, /) -> MaskSheet: ...

    def accept(self, flight: F, sheet: MaskSheet = NO_MASKS, /) -> None: ...

    def absorb(self, flight: F, /) -> None: ...

    def recover(self) -> None:
        """Make the device usable again after a failed launch; slot contents may be lost."""
        ...


MOST_FAULTS_IN_A_ROW = 16
"""Without a step between them that ended well: twice as many as 256 rows need until one of them is alone."""


@dataclass(slots=True)
class LoopTimes:
    """Seconds of host time since the start, and the steps they were spent on. `waited` is idle time, not work.

    masked: writing masks, and waiting for the drafts along which they are written.
    """

    steps: int = 0
    scheduled: float = 0.0
    launched: float = 0.0
    waited: float = 0.0
    settled: float = 0.0
    masked: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A settled step, and when the host worked on it, by `time.perf_counter`.

    scheduled .. built .. launched: the plan was chosen and the step built, then launched. waited .. arrived .. settled:
    nothing was done for it until its results were there, then they were taken into its requests.
    """

    step: Step
    outcome: Outcome
    scheduled: float
    built: float
    launched: float
    waited: float
    arrived: float
    settled: float


Watch = Callable[[Turn], None]
"""Told of every settled step, in order."""


@dataclass(frozen=True, slots=True)
class _Pending(Generic[F]):
    """A launched step, and when that was."""

    flight: F
    scheduled: float
    built: float
    launched: float


class _HostWork:
    """Errors within it are the host's, whatever their type: HostFault, where a device's would be RuntimeError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            said = format_exception_only(error)[0].splitlines()[0]
            raise HostFault(f"{self._what} failed: {said}") from error


_PLANNING, _WRITING_MASKS = _HostWork("planning a step"), _HostWork("writing masks")
_SETTLING, _OBSERVING = _HostWork("settling a step"), _HostWork("observing a step")


class Loop(Generic[F]):
    """Advances every request by steps.

    faults: times that launched steps were lost. fault: why, the last time, in one line; empty before the first.
    failure: why no step can be run any more, in one line; empty while all is well.
    lookahead: how many launched steps may be unsettled when a step's turn ends. 1 overlaps the host's work with the
    device's; 0 settles every step before the next is built. The text is the same.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        controller: Controller,
        runner: Runner[F],
        committer: Committer,
        lookahead: int,
        watches: Sequence[Watch] = (),
        walker: Walker | None = None,
    ) -> None:
        """walker: writes masks; by default one of this thread alone."""
        self.times = LoopTimes()
        self.faults = 0
        self.fault = ""
        self.failure = ""
        self._faults_in_a_row = 0
        self._walker = walker or Walker()
        self._scheduler = scheduler
        self._controller = controller
        self._runner = runner
        self._committer = committer
        self._lookahead = lookahead
        self._watches = watches
        self._pending: deque[_Pending[F]] = deque()
        self._arrived = 0.0  # when the newest results came, where steps follow each other; else 0

    @property
    def idle(self) -> bool:
        """Nothing waits, runs or is in flight."""
        return not (self._pending or self._scheduler.waiting or self._scheduler.running)

    @property
    def settled(self) -> bool:
        """No launched step is still to be settled."""
        return not self._pending

    def advance(self) -> list[Delta]:
        """One turn: launch the next step if there is one, settle what has become due.

        The returned deltas are to be published by the caller now, under the launched step. Raises HostFault, behind
        which no step may be run: `failure` is set.
        """
        try:
            return self._advance()
        except HostFault as fault:
            self.failure = str(fault)
            raise

    def _advance(self) -> list[Delta]:
        started = time.perf_counter()
        with _PLANNING:
            step = self._scheduler.build(self._controller.choose(self._scheduler.collect()))
        built = time.perf_counter()
        self.times.scheduled += built - started
        deltas: list[Delta] = []
        try:
            if step is None:
                self._settle_down_to(len(self._pending) - 1, deltas)
            else:
                self._launch(step, started, built, deltas)
                self._settle_down_to(self._lookahead, deltas)
        except (RuntimeError, MemoryError) as error:
            deltas += self._abandon(error)
        return deltas

    def _launch(self, step: Step, started: float, built: float, deltas: list[Delta]) -> None:
        """Launch all of a step. Where it has masks, all before it are settled first, under its forward pass or not."""
        for admission in step.admissions:
            request = self._scheduler.running[admission.request_id].request
            request.admitted = request.admitted or time.monotonic()
        flight, sheet = self._runner.draft(step), NO_MASKS
        drafted = time.perf_counter()
        if step.masked and not self._walker.ahead:
            self._settle_down_to(0, deltas)
            sheet = self._write_masks(flight)
        begun = time.perf_counter()
        self._runner.forward(flight)
        launched = time.perf_counter()
        self._pending.append(_Pending(flight, started, built, launched))
        if step.masked and self._walker.ahead:
            self._settle_down_to(1, deltas)
            sheet = self._write_masks(flight)
        resumed = time.perf_counter()
        self._runner.accept(flight, sheet)
        self._runner.absorb(flight)
        self.times.launched += drafted - built + launched - begun + time.perf_counter() - resumed
        self.times.steps += 1

    def _write_masks(self, flight: F) -> MaskSheet:
        started = time.perf_counter()
        flown, drafts = self._scheduler.flying(flight.step), flight.drafted()
        chains = [
            (row, flown[row].request.constraint, drafts[row])
            for row in flight.step.masked
            if flown[row].request.finish is None
        ]
        sheet, begun = self._runner.sheet(flight), time.perf_counter()
        with _WRITING_MASKS:
            self._walker.fill(chains, sheet, drafting=flight.step.plan.drafts > 0)
        ended = time.perf_counter()
        written = len(chains) + sum([len(chain[2]) for chain in chains])
        with _OBSERVING:
            self._controller.observe_masks(written, ended - begun)
        self.times.masked += ended - started
        return sheet

    def _settle_down_to(self, unsettled: int, deltas: list[Delta]) -> None:
        """Settle the oldest launched steps until only `unsettled` are left, adding to `deltas`."""
        while len(self._pending) > max(unsettled, 0):
            pending = self._pending[0]
            step, started = pending.flight.step, time.perf_counter()
            outcome = pending.flight.wait()
            arrived = time.perf_counter()
            outcome = replace(outcome, between=self._between(outcome, arrived))
            self._pending.popleft()
            self._faults_in_a_row = 0
            with _SETTLING:
                deltas += self._committer.settle(step, outcome)
            with _OBSERVING:
                self._controller.observe(step, outcome)
            self._arrived = arrived if self._scheduler.running else 0.0
            settled = time.perf_counter()
            self.times.waited += arrived - started
            self.times.settled += settled - arrived
            before = pending.scheduled, pending.built, pending.launched
            with _OBSERVING:
                for watch in self._watches:
                    watch(Turn(step, outcome, *before, started, arrived, settled))

    def _between(self, outcome: Outcome, arrived: float) -> float:
        """`Outcome.between`."""
        device = sum(outcome.seconds)
        return max(0.0, arrived - self._arrived - device) if device and self._arrived else 0.0

    def _abandon(self, error: Exception) -> list[Delta]:
        """A launch failed, and what was launched is lost: the rows run again, half as many at once.

        Texts do not change by that, so nobody notices but by the time it takes. One that fails alone is at fault itself
        and ends with the error. Where memory was what lacked, the device's is sound; else nothing cached is trusted.
        """
        self.faults += 1
        self.fault = first_line(error)
        self._faults_in_a_row += 1
        rows = max((len(pending.flight.step.rows) for pending in self._pending), default=0)
        self._pending.clear()
        self._arrived = 0.0
        deltas = []
        if max(rows, len(self._scheduler.running)) > 1:
            self._scheduler.preempt_all()
        else:
            self._scheduler.forget_flights()
            finish = Finish(FinishReason.ERROR, message=f"the device failed: {self.fault}")
            lost = [running.request for running in self._scheduler.running.values()]
            deltas = [self._committer.abort(request, finish) for request in lost]
        if self._scheduler.cache is not None and not isinstance(error, OutOfDeviceMemory | MemoryError):
            self._scheduler.cache.clear()
        self._recover()
        return deltas

    def _recover(self) -> None:
        if self._faults_in_a_row > MOST_FAULTS_IN_A_ROW:
            self.failure = f"the device failed {self._faults_in_a_row} times in a row: {self.fault}"
        try:
            self._runner.recover()
        except RuntimeError as lost:
            self.failure = f"the device is lost: {first_line(lost)}"
