"""Grammars are compiled beside everything else: once, within their time, and a bad one ends its own request alone."""

from __future__ import annotations

import threading

import pytest

from overdrive.errors import BadRequest
from overdrive.grammar.programs import KEPT, Programs, wait_for
from overdrive.grammar.sources import MOST_BYTES, compose

from .words import compiler, programs


class Slow:
    """Compiles when it is let."""

    def __init__(self) -> None:
        self.go, self.count = threading.Event(), 0

    def __call__(self, kind: str, source: str):
        self.count += 1
        if kind == "slow":
            self.go.wait(30)
        return source


def test_equal_grammars_are_compiled_once() -> None:
    slow = Slow()
    made = Programs(slow, threads=4)
    tickets = [made.ask("slow", "a") for _ in range(5)]
    assert not any(ticket.ready for ticket in tickets)
    slow.go.set()
    wait_for(tickets, 5)
    assert {ticket.program() for ticket in tickets} == {"a"}
    assert slow.count == 1
    made.close()


def test_a_grammar_that_takes_too_long_is_refused() -> None:
    slow = Slow()
    made = Programs(slow, seconds=0.0)
    ticket = made.ask("slow", "a")
    wait_for([ticket], 0.01)
    assert ticket.ready
    with pytest.raises(BadRequest, match="within 0 seconds"):
        ticket.program()
    slow.go.set()
    made.close()


def test_a_fault_of_the_librarys_is_a_400_too() -> None:
    def faulty(kind: str, source: str):
        raise BaseException("index out of bounds")  # what a panic in native code looks like

    made = Programs(faulty)
    ticket = made.ask("regex", "a")
    wait_for([ticket], 5)
    with pytest.raises(BadRequest, match="out of bounds"):
        ticket.program()
    made.close()


def test_a_slow_grammar_holds_no_other() -> None:
    slow = Slow()
    made = Programs(slow, threads=2)
    late, soon = made.ask("slow", "a"), made.ask("quick", "b")
    wait_for([soon], 5)
    assert soon.program() == "b"
    assert not late.ready
    slow.go.set()
    made.close()


def test_only_the_latest_programs_are_kept() -> None:
    slow = Slow()
    made = Programs(slow)
    for number in range(2 * KEPT):
        wait_for([made.ask("quick", str(number))], 5)
    assert len(made._kept) == KEPT
    wait_for([made.ask("quick", "0")], 5)
    assert slow.count == 2 * KEPT + 1
    made.close()


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
        ("lark", "start: nothing", "grammar"),
        ("gbnf", "root ::= (", "GBNF"),
        ("poem", "roses", "no kind of grammar"),
    ],
)
def test_what_cannot_be_used_is_said(kind: str, source: str, named: str) -> None:
    made = programs()
    ticket = made.ask(kind, source)
    wait_for([ticket], 10)
    with pytest.raises(BadRequest, match=named):
        ticket.program()
    made.close()


def test_a_choice_is_taken_literally() -> None:
    matcher = compiler()("choice", '["a.b", "no"]').start()
    with pytest.raises(Exception, match="refuses"):
        for token in (3, 3):
            matcher.accept(token)
    assert compose("choice", '["x", "x"]') == compose("choice", '["x"]')
