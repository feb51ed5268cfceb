"""An engine under whatever may happen to it, in any order: hypothesis looks for the order that breaks it.

Requests of every kind come and go, K changes or stops, rows are preempted, launches fail or find no memory, deadlines
pass. After each of these pages, slots, matchers and ends are accounted for; at last everyone has exactly one end, what
was not ended from outside has the text of one token at a time, and everything is back.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from overdrive.errors import BadRequest, OutOfDeviceMemory
from overdrive.grammar.programs import Programs, Ticket
from overdrive.policy.controller import Controller, LoadView
from overdrive.types import FinishReason, Plan, Why
from tests.effort import effort
from tests.grammar.words import EOS, program

from .constrained import oracle, random_spec
from .lazy import LazyStream
from .test_deadlines import Clock
from .test_engine_laws import random_bounds, random_params
from .tiny_drafters import DRAFTERS
from .tiny_engine import MAX_MODEL_LEN, VOCAB, tiny_bench
from .whole import whole

ENDED_FROM_OUTSIDE = (FinishReason.ABORT, FinishReason.ERROR)


class InstantPrograms(Programs):
    """Compiles while it is asked: what the machine does must not depend on a thread's haste."""

    def __init__(self) -> None:
        """There are no threads."""

    def ask(self, kind: str, source: str) -> Ticket:
        compiled: Future = Future()
        try:
            compiled.set_result(program(kind, source))
        except BadRequest as error:
            compiled.set_exception(error)
        return Ticket(compiled, 20.0)

    def close(self) -> None:
        """Nothing runs."""


class FaultyStream(LazyStream):
    """Fails those launches that it is told to, by how many come before."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.faults: dict[int, Exception] = {}

    def launch(self, work: Callable[[], None]) -> None:
        self.faults = {count - 1: error for count, error in self.faults.items()}
        error = self.faults.pop(-1, None)

        def fail() -> None:
            raise error

        super().launch(work if error is None else fail)


class Told(Controller):
    """As many drafts as the machine says."""

    plans = tuple(range(1, 16))
    drafts = 3

    def choose(self, view: LoadView) -> Plan:
        return Plan(self.drafts, Why(rule="told"))


class EngineMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**20), drafter=st.sampled_from(sorted(DRAFTERS)))
    def start(self, seed: int, drafter: str) -> None:
        self.rng = random.Random(seed)
        self.stream, self.told, self.clock = FaultyStream(self.rng), Told(), Clock()
        self.bench = tiny_bench(self.stream, self.told, DRAFTERS[drafter], **random_bounds(self.rng))
        self.engine = whole(self.bench, compiled=InstantPrograms())
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("overdrive.engine.time", self.clock)
        self.asked: dict[str, tuple] = {}
        self.requests: list = []

    @rule(size=st.integers(1, 40), constrained=st.booleans(), patience=st.sampled_from([5, 500, float("inf")]))
    def submit(self, size: int, constrained: bool, patience: float) -> None:
        prompt = [self.rng.randrange(VOCAB) for _ in range(size)]
        if self.requests and self.rng.random() < 0.4:  # a beginning that others have had
            prompt = [*self.rng.choice(self.requests).prompt[:24], *prompt][:60]
        params = random_params(self.rng, len(prompt))
        if constrained:
            params = replace(params, grammar=random_spec(self.rng), stop_token_ids=(EOS,), max_tokens=20)
        name = f"r{len(self.requests)}"
        try:
            self.requests.append(self.engine.submit(name, prompt, params, patience))
            self.asked[name] = tuple(prompt), params
        except BadRequest as refused:  # more than all pages hold
            assert refused.code == "context_length_exceeded"

    @rule(text=st.sampled_from(["(", "[a-", "("]))
    def submit_what_cannot_be_compiled(self, text: str) -> None:
        spec = replace(random_spec(self.rng), kind="regex", source=text)
        params = replace(random_params(self.rng, 3), grammar=spec)
        self.requests.append(self.engine.submit(f"r{len(self.requests)}", [1, 2, 3], params))

    @rule(tokens=st.sampled_from([[], [VOCAB], [-1], [1] * (MAX_MODEL_LEN + 1)]))
    def submit_what_is_refused(self, tokens: list[int]) -> None:
        before = self.engine.stats().submitted
        with pytest.raises(BadRequest):
            self.engine.submit("refused", tokens, random_params(self.rng, 1))
        assert self.engine.stats().submitted == before

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([request.id for request in self.requests]))  # what is drawn is kept for ever
        for delta in self.engine.abort(name):
            self.bench.take(delta)

    @rule(turns=st.integers(1, 8))
    def advance(self, turns: int) -> None:
        for _ in range(turns):
            if not self.engine.idle:
                for delta in self.engine.advance():
                    self.bench.take(delta)

    @rule(drafts=st.sampled_from([0, 0, 1, 2, 3, 7, 15]))
    def change_drafts(self, drafts: int) -> None:
        self.told.drafts = drafts

    @rule()
    def preempt(self) -> None:
        self.bench.scheduler._preempt_youngest()

    @rule(launches=st.integers(0, 9), scarce=st.booleans())
    def fail(self, launches: int, scarce: bool) -> None:
        self.stream.faults[launches] = OutOfDeviceMemory("no memory") if scarce else ValueError("a fault")

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "engine"):
            return
        scheduler, stats = self.bench.scheduler, self.engine.stats()
        scheduler.pool.check(page for running in scheduler.running.values() for page in running.pages)
        assert stats.slots_used == stats.running <= scheduler.limits.max_rows
        living = list(scheduler.living())
        assert all(request.finish is None for request in living)
        assert stats.submitted == len(living) + sum(stats.finished.values())
        assert stats.matchers >= sum(request.constraint.active for request in living)
        assert all(len(ends) == 1 for ends in self.bench.finishes.values())
        assert len(self.bench.finishes) == sum(stats.finished.values())

    def check_end(self, name: str) -> None:
        [finish], found = self.bench.finishes[name], self.bench.answers[name]
        expected, end = oracle(*self.asked[name]) if name in self.asked else ([], None)
        assert found == expected[: len(found)]
        assert (found, finish) == (expected, end) or finish.reason in ENDED_FROM_OUTSIDE

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.stream.faults.clear()
        for _ in range(4000):
            if self.engine.idle:
                break
            self.advance(1)
        assert self.engine.idle, "the engine makes no progress"
        self.everything_is_accounted_for()
        self.bench.check_conserved()
        for name in [request.id for request in self.requests]:
            self.check_end(name)
        self.requests.clear()
        gc.collect()  # errors hold the frames that raised them
        assert self.engine.stats().matchers == 0
        self.engine.close()
        self.patch.undo()


EngineMachine.TestCase.settings = effort(0.12, 30)
TestEngineMachine = EngineMachine.TestCase
