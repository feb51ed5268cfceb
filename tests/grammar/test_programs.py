"""Grammars are compiled beside everything else: once, within their time, and a bad one ends its own request alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from overdrive.errors import BadRequest
from overdrive.grammar.base import GrammarAwaited, GrammarSpent, NotNow, Vetted, legal
from overdrive.grammar.lasting import Lasting
from overdrive.grammar.programs import KEPT, KEPT_BYTES, Programs, wait_for
from overdrive.grammar.sources import MOST_BYTES, compose
from tests.patience import PATIENCE

from .words import EOS, compiler, encode, programs


class Made(str):
    """A program whose matchers are its source; once it is `spent`, it has none."""

    spent = False

    def start(self):
        if self.spent:
            raise GrammarSpent
        return self


class Slow:
    """Compiles when it is let."""

    def __init__(self) -> None:
        self.go, self.made = threading.Event(), []

    @property
    def count(self) -> int:
        return len(self.made)

    def compose(self, kind: str, source: str) -> str:
        raise NotImplementedError

    def build(self, kind: str, source: str, grammar: str):
        self.made.append(Made(grammar))
        if kind == "slow":
            self.go.wait(PATIENCE)
        return self.made[-1]


def let_pass(kind: str, source: str, seconds: float) -> Future[Vetted]:
    """Finds that kind "slow" takes long."""
    vetted: Future[Vetted] = Future()
    vetted.set_result(Vetted(source, 3.0 if kind == "slow" else 0.0, 1))
    return vetted


def test_equal_grammars_are_compiled_once() -> None:
    slow = Slow()
    made = Programs(slow, let_pass, threads=4)
    tickets = [made.ask("slow", "a") for _ in range(5)]
    assert not any(ticket.ready for ticket in tickets)
    slow.go.set()
    wait_for(tickets, PATIENCE)
    assert {ticket.program().start() for ticket in tickets} == {"a"}
    assert slow.count == 1
    made.close()


def test_a_grammar_that_takes_too_long_is_refused() -> None:
    slow = Slow()
    made = Programs(slow, let_pass, seconds=0.0)
    ticket = made.ask("slow", "a")
    wait_for([ticket], 0.01)
    assert ticket.ready
    with pytest.raises(BadRequest, match="within 0 seconds"):
        ticket.program()
    slow.go.set()
    made.close()


def test_a_fault_of_the_librarys_is_a_400_too() -> None:
    class Faulty(Slow):
        def build(self, kind: str, source: str, grammar: str):
            raise BaseException("index out of bounds")  # what a panic in native code looks like

    made = Programs(Faulty(), let_pass)
    ticket = made.ask("regex", "a")
    wait_for([ticket], PATIENCE)
    with pytest.raises(BadRequest, match="out of bounds"):
        ticket.program()
    made.close()


def test_slow_grammars_hold_no_quick_one() -> None:
    slow = Slow()
    made = Programs(slow, let_pass)
    late, soon = [made.ask("slow", str(number)) for number in range(20)], made.ask("quick", "b")
    wait_for([soon], PATIENCE)
    assert soon.program().start() == "b"
    assert not any(ticket.ready for ticket in late)
    slow.go.set()
    wait_for(late[-1:], PATIENCE)
    made.close()


def test_of_quick_grammars_the_quickest_is_compiled_first() -> None:
    """However many were asked for before, each within what is quick."""

    def told(kind: str, source: str, seconds: float) -> Future[Vetted]:
        vetted: Future[Vetted] = Future()
        vetted.set_result(Vetted(source, float(source), 0))
        return vetted

    slow = Slow()
    made = Programs(slow, told, threads=1)
    made.ask("slow", "0.001")  # is under way
    others = [made.ask("quick", f"0.2{number}") for number in (3, 1, 2)]
    quickest = made.ask("quick", "0.004")
    slow.go.set()
    wait_for([quickest], PATIENCE)
    wait_for(others[:1], PATIENCE)
    assert slow.made == ["0.001", "0.004", "0.21", "0.22", "0.23"]
    made.close()


def test_what_was_not_tried_for_want_of_time_is_tried_again() -> None:
    def busy(kind: str, source: str, seconds: float) -> Future[Vetted]:
        asked.append(source)
        vetted: Future[Vetted] = Future()
        vetted.set_exception(NotNow("too many at once"))
        return vetted

    asked: list[str] = []
    made = Programs(Slow(), busy)
    for _ in range(2):
        with pytest.raises(BadRequest, match="too many"):
            made.ask("quick", "a").program()
    assert asked == ["a", "a"]
    made.close()


def test_programs_that_take_much_memory_are_not_kept() -> None:
    def large(kind: str, source: str, seconds: float) -> Future[Vetted]:
        vetted: Future[Vetted] = Future()
        vetted.set_result(Vetted(source, 0.0, KEPT_BYTES // 3))
        return vetted

    made = Programs(Slow(), large)
    for number in range(9):
        wait_for([made.ask("quick", str(number))], PATIENCE)
    assert len(made._kept) <= 4
    made.close()


def test_a_program_that_is_used_up_is_followed_by_another() -> None:
    """Whoever has it goes on with it, and it is not tried again."""
    slow, program = had("quick")
    slow.made[0].spent = True
    wait = awaited(program)
    assert wait.ready.result(PATIENCE) is program
    assert program.start() is slow.made[1]


def test_whoever_awaits_a_program_awaits_the_same() -> None:
    slow, program = had("slow")
    slow.go.clear()
    slow.made[0].spent = True
    first, second = awaited(program), awaited(program)
    assert first.ready is second.ready and not first.ready.done()
    slow.go.set()
    assert first.ready.result(PATIENCE) is program
    assert program.start() is slow.made[1]


def test_a_program_that_was_used_up_once_has_another_ahead() -> None:
    """So nobody waits again."""
    slow, program = had("quick")
    slow.made[0].spent = True
    awaited(program).ready.result(PATIENCE)
    for newest in range(1, 9):
        assert program.start() is slow.made[newest]
        program._ordered[0].result(PATIENCE)
        slow.made[newest].spent = True
    assert program.copies == 2


def test_a_successor_does_not_wait_behind_what_is_slow() -> None:
    slow, program = had("quick")
    made = Programs(slow, let_pass)
    others = [made.ask("slow", str(number)) for number in range(5)]
    slow.made[0].spent = True
    awaited(program).ready.result(PATIENCE)
    assert not any(other.ready for other in others)
    slow.go.set()
    wait_for(others[-1:], PATIENCE)
    made.close()


def test_a_successor_that_cannot_be_built_is_tried_again() -> None:
    slow, program = had("quick")
    slow.made[0].spent = True
    building, program._build = program._build, lambda: 1 // 0
    assert isinstance(awaited(program).ready.exception(PATIENCE), ZeroDivisionError)
    program._build = building
    assert awaited(program).ready.result(PATIENCE) is program


def had(kind: str) -> tuple[Slow, Lasting]:
    """A program and its compiler."""
    slow = Slow()
    slow.go.set()
    made = Programs(slow, let_pass)
    ticket = made.ask(kind, "a")
    wait_for([ticket], PATIENCE)
    slow.go = threading.Event() if kind == "quick" else slow.go
    return slow, ticket.program()


def awaited(program: Lasting) -> GrammarAwaited:
    with pytest.raises(GrammarAwaited) as wait:
        program.start()
    return wait.value


ENDING = """
import threading, time
from concurrent.futures import Future
from overdrive.grammar.crew import Crew
crew, begun = Crew(1, nice=0), threading.Event()
def work():
    begun.set()
    threading.main_thread().join()
    print("done", flush=True)
crew.submit(work, Future(), 1.0)
crew.submit(lambda: print("begun", flush=True), Future(), 2.0)
begun.wait()
"""


def test_a_process_ends_when_what_is_under_way_has_and_begins_no_other() -> None:
    """Native code that comes back to an interpreter which is gone would crash it."""
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, env=os.environ | paths)
    assert (ended.returncode, ended.stdout) == (0, "done\n")


LONG = 20_000
REFERENCES = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(LONG)} | {str(LONG): {"type": "null"}}


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("lark", "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(LONG)) + f'r{LONG}: "no"'),
        ("lark", "start: R0\n" + "".join(f"R{n}: R{n + 1}\n" for n in range(LONG)) + f'R{LONG}: "no"'),
        ("json_schema", json.dumps({"$ref": "#/$defs/0", "$defs": REFERENCES})),
    ],
    ids=["rules", "terminals", "references"],
)
def test_no_chain_is_too_long_for_the_stack(kind: str, source: str) -> None:
    """The process would end otherwise, and all its answers."""
    made = programs()
    ticket = made.ask(kind, source)
    wait_for([ticket], PATIENCE)
    assert ticket.program().start().forced()
    made.close()


def test_only_the_latest_programs_are_kept() -> None:
    slow = Slow()
    made = Programs(slow, let_pass)
    for number in range(2 * KEPT):
        wait_for([made.ask("quick", str(number))], PATIENCE)
    assert len(made._kept) == KEPT
    wait_for([made.ask("quick", "0")], PATIENCE)
    assert slow.count == 2 * KEPT + 1
    made.close()


MANY = json.dumps({"type": "object", "properties": {f"a{n}": {"type": "string"} for n in range(2_500)}})


@pytest.mark.parametrize(
    ("kind", "source", "named"),
    [
        ("regex", "(", "regular expression"),
        ("regex", "a" * (MOST_BYTES + 1), "the limit is"),
        ("json_schema", "{", "no JSON"),
        ("json_schema", "3", "object or a boolean"),
        ("json_schema", "[" * 100_000, "JSON"),
        ("choice", "[]", "at least one"),
        ("choice", '["a", 3]', "at least one string"),
        ("json_schema", MANY, "beyond what"),
        ("lark", "start: nothing", "grammar"),
        ("lark", 'start: "a" b\nb[max_tokens=9]: /[a-f]*/', "max_tokens and stop"),
        ("lark", 'start: b "no"\nb[stop="9"]: /[a-f]*/', "max_tokens and stop"),
        ("gbnf", "root ::= (", "GBNF"),
        ("poem", "roses", "no kind of grammar"),
    ],
)
def test_what_cannot_be_used_is_said(kind: str, source: str, named: str) -> None:
    made = programs()
    ticket = made.ask(kind, source)
    wait_for([ticket], PATIENCE)
    with pytest.raises(BadRequest, match=named):
        ticket.program()
    made.close()


def test_one_of_many_choices_is_as_good_as_one_of_few() -> None:
    matcher, words = compiler()("choice", json.dumps([f"no {n}" for n in range(10_000)])).start(), np.zeros(2, np.int32)
    for token in encode("no 9999"):
        matcher.fill(words)
        assert legal(words, token)
        matcher.accept(token)
    assert matcher.forced() == [EOS]


def test_a_choice_is_taken_literally() -> None:
    matcher = compiler()("choice", '["a.b", "no"]').start()
    with pytest.raises(Exception, match="refuses"):
        for token in (3, 3):
            matcher.accept(token)
    assert compose("choice", '["x", "x"]') == compose("choice", '["x"]')
