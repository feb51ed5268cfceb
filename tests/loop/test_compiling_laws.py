"""Requests whose grammars are being compiled: they wait, others do not, and each has one end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace

import llguidance
import pytest

from overdrive.commit import Delta
from overdrive.device.stream import InlineStream
from overdrive.engine import Engine
from overdrive.engine_process import as_message
from overdrive.grammar.base import Vetted
from overdrive.grammar.guidance import GuidanceCompiler
from overdrive.grammar.levels import Level
from overdrive.grammar.programs import Programs, Vet
from overdrive.grammar.vetting import Vetting
from overdrive.policy.controller import FixedDrafts
from overdrive.types import FinishReason, GrammarSpec, SamplingParams
from tests.grammar.patients import Patients
from tests.grammar.words import EOS, VOCABULARY, compiler, program
from tests.patience import PATIENCE

from .bench import Bench, RandomDrafts
from .constrained import oracle
from .lazy import LazyStream
from .padded_engine import choices, padded_bench
from .test_engine_laws import random_bounds
from .tiny_drafters import DRAFTERS, ngram
from .tiny_engine import VOCAB, tiny_bench
from .whole import whole


class Gate:
    """Lets sources that begin with "w" pass when it is open, others at once."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def vet(self, kind: str, source: str, seconds: float) -> Future[Vetted]:
        vetted: Future[Vetted] = Future()

        def work() -> None:
            if source.startswith("w"):
                self.open.wait(PATIENCE)
            vetted.set_result(Vetted(source.removeprefix("w"), 0.0, 0))

        threading.Thread(target=work).start()
        return vetted

    def compose(self, kind: str, source: str) -> str:
        raise NotImplementedError

    def build(self, kind: str, source: str, grammar: str):
        return compiler()(kind, grammar)


def make_engine(gate: Gate, seconds: float = PATIENCE, vet: Vet | None = None, bench: Bench | None = None) -> Engine:
    bench = bench or tiny_bench(InlineStream(), FixedDrafts(3), ngram, max_rows=2)
    return whole(bench, compiled=Programs(gate, vet or gate.vet, threads=2, seconds=seconds))


def params(source: str = "", most: int = 12, kind: str = "regex") -> SamplingParams:
    grammar = GrammarSpec(kind, source) if source else None
    return SamplingParams(max_tokens=most, temperature=0.0, grammar=grammar, stop_token_ids=(EOS,))


class Renewing(Gate):
    """Its programs are used up soon, and those that follow the first of each are built while it is open."""

    def __init__(self, states: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        limits = llguidance.LLParserLimits(max_lexer_states=states, verbose_errors=False)
        monkeypatch.setattr("overdrive.grammar.guidance.LIMITS", limits)
        monkeypatch.setattr("overdrive.grammar.guidance.RENEWAL_SECONDS", -1.0)
        self.built: Counter[str] = Counter()

    def build(self, kind: str, source: str, grammar: str):
        self.built[source] += 1
        if self.built[source] > 1:
            self.open.wait(30)
        return GuidanceCompiler(VOCABULARY)(kind, grammar)


MANY_STATES = "([a-z ]*[ab][a-z ]{12})*"


@pytest.mark.parametrize("padded", [False, True])
def test_nobody_ends_by_what_others_use_up(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late streams, random K, chunks, pages and preemption: the text is that of an answer that is alone."""
    renewed, _ = 0, program("regex", MANY_STATES)  # the oracle's, which is never used up
    for seed in range(3):
        rng, ends = random.Random(seed), {}
        gate = Renewing(300, monkeypatch)
        gate.open.set()
        make, drafters = (padded_bench, choices()) if padded else (tiny_bench, DRAFTERS)
        engine = make_engine(
            gate,
            bench=make(LazyStream(rng), RandomDrafts(rng), rng.choice(list(drafters.values())), **random_bounds(rng)),
        )
        asked = {str(n): (rng.randrange(VOCAB), n) for n in range(4)}
        sampled = replace(params(MANY_STATES, 20), temperature=1.0, seed=seed)
        for name, prompt in asked.items():
            engine.submit(name, prompt, sampled)
        run(engine, ends)
        assert set(ends) == set(asked)
        for name, prompt in asked.items():
            expected, finish = oracle(prompt, sampled)
            assert (list(ends[name].request.output), ends[name].finish) == (expected, finish)
        renewed += gate.built[MANY_STATES] - 1
    assert renewed > 2


def test_who_waits_for_a_grammar_that_was_used_up_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, ends = Renewing(400, monkeypatch), {}
    engine = make_engine(gate)
    engine.submit("held", (1, 2), replace(params(MANY_STATES, 60), temperature=1.0, seed=1))
    run(engine, ends, lambda: gate.built[MANY_STATES] == 2)
    assert not ends
    for number in range(3):
        engine.submit(f"free{number}", (1, 2), params())
    engine.submit("same", (1, 2), params(MANY_STATES, 4))
    run(engine, ends, lambda: len(ends) == 3)
    assert {name[:4] for name in ends} == {"free"}
    engine.advance()
    assert engine.stats().slots_used == 0
    [gone] = engine.abort("same")
    assert gone.finish.reason is FinishReason.ABORT
    gate.open.set()
    run(engine, ends)
    assert ends["held"].finish.reason is FinishReason.STOP


def run(engine: Engine, ends: dict[str, Delta], until=lambda: False) -> None:
    while not engine.idle and not until():
        for delta in engine.advance():
            if delta.finish:
                assert delta.request.id not in ends
                ends[delta.request.id] = delta


def test_who_waits_for_a_grammar_holds_nobody_up() -> None:
    gate, ends = Gate(), {}
    engine = make_engine(gate)
    for number in range(4):  # more than there are rows
        engine.submit(f"slow{number}", (1, 2), params("w[0-9]{2}"))
    engine.submit("free", (1, 2), params())
    engine.submit("quick", (1, 2), params("[0-9]{2}"))
    run(engine, ends, lambda: len(ends) == 2)
    assert set(ends) == {"free", "quick"}
    assert not engine.idle
    assert engine.advance() == []  # waits a moment, then messages are read
    gate.open.set()
    run(engine, ends)
    assert len(ends) == 6
    assert {end.finish.reason for name, end in ends.items() if name != "free"} == {FinishReason.STOP}
    outputs = {tuple(end.request.output) for name, end in ends.items() if name != "free"}
    assert len(outputs) == 1


def test_a_bad_grammar_ends_its_request_alone_with_a_400() -> None:
    ends: dict[str, Delta] = {}
    engine = make_engine(Gate())
    engine.submit("bad", (1, 2), params("("))
    engine.submit("good", (1, 2), params("[0-9]{2}"))
    run(engine, ends)
    message = as_message(ends["bad"])
    assert (message.finish, message.status) == (FinishReason.ERROR, 400)
    assert "regular expression" in message.error
    assert ends["good"].finish.reason is FinishReason.STOP


def test_a_request_is_given_up_while_its_grammar_is_compiled() -> None:
    gate, ends = Gate(), {}
    engine = make_engine(gate)
    engine.submit("gone", (1, 2), params("w[0-9]"))
    assert engine.advance() == []
    [end] = engine.abort("gone")
    assert end.finish.reason is FinishReason.ABORT
    assert engine.idle
    gate.open.set()
    engine.submit("next", (1, 2), params("[0-9]"))
    run(engine, ends)
    assert set(ends) == {"next"}


def test_however_many_grammars_never_compile_an_ordinary_request_is_answered() -> None:
    """While they are still being tried."""
    vetting, ends = Vetting(Patients, (Level(0.02, 2, 0), Level(30.0, 1, 19))), {}
    engine = make_engine(Gate(), vet=vetting)
    for number in range(6):
        engine.submit(f"endless{number}", (1, 2), params(str(number), kind="endless"))
    engine.submit("ordinary", (1, 2), params("[0-9]{2}"))
    run(engine, ends, lambda: "ordinary" in ends)
    assert ends["ordinary"].finish.reason is FinishReason.STOP
    assert [len(engine.abort(f"endless{number}")) for number in range(6)] == [1] * 6
    run(engine, {})
    vetting.close()


def test_requests_whose_grammars_never_compile_have_a_400() -> None:
    vetting, ends = Vetting(Patients, (Level(0.02, 2, 0), Level(0.04, 1, 0))), {}
    engine = make_engine(Gate(), vet=vetting)
    for number in range(3):
        engine.submit(f"endless{number}", (1, 2), params(str(number), kind="endless"))
    run(engine, ends)
    assert [end.finish.status for end in ends.values()] == [400] * 3
    vetting.close()


def test_a_grammar_whose_turn_comes_too_late_is_no_fault_of_its_own() -> None:
    gate, ends = Gate(), {}
    engine = make_engine(gate, seconds=0.0)
    engine.submit("late", (1, 2), params("w[0-9]"))
    run(engine, ends)
    assert (ends["late"].finish.status, as_message(ends["late"]).code) == (503, "grammar_not_compiled")
    gate.open.set()
