"""Grammars are compiled beside everything else: once, within their time, and a bad one ends its own request alone."""

from __future__ import annotations

import json
import random
import threading
from functools import partial

import llguidance
import numpy as np
import pytest

from overdrive.errors import BadRequest
from overdrive.grammar.base import GrammarFault, legal
from overdrive.grammar.programs import KEPT, MOST_THREADS, Programs, Ticket, wait_for
from overdrive.grammar.sources import MOST_BYTES, compose

from .words import EOS, compiler, encode, programs


class Made(str):
    """A program that is its source."""

    spent = False


class Slow:
    """Compiles when it is let."""

    def __init__(self) -> None:
        self.go, self.count = threading.Event(), 0

    def __call__(self, kind: str, source: str):
        self.count += 1
        if kind == "slow":
            self.go.wait(30)
        return Made(source)


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


def test_grammars_that_never_compile_hold_no_other() -> None:
    """As many as there are threads, and more: their requests are refused in time, but their threads work on."""
    slow = Slow()
    made = Programs(slow, threads=2, patience=0.0)
    late = [made.ask("slow", str(number)) for number in range(5)]
    soon = made.ask("quick", "b")
    for _ in range(500):
        if soon.ready:  # whoever waits looks after them
            break
        wait_for([soon], 0.01)
    assert soon.program() == "b"
    assert not any(ticket.compiled.done() for ticket in late)
    slow.go.set()
    wait_for(late, 5)
    made.close()


def test_there_is_an_end_to_how_many_are_compiled_at_once() -> None:
    slow = Slow()
    made = Programs(slow, patience=0.0)
    late = [made.ask("slow", str(number)) for number in range(3 * MOST_THREADS)]
    for _ in range(100):
        assert not late[-1].ready
    assert slow.count <= MOST_THREADS
    slow.go.set()
    for ticket in late:
        ticket.compiled.result(5)
    assert slow.count == 3 * MOST_THREADS
    made.close()


def test_a_program_that_is_spent_is_compiled_anew() -> None:
    slow = Slow()
    made = Programs(slow)
    first = made.ask("quick", "a")
    wait_for([first], 5)
    first.program().spent = True
    second = made.ask("quick", "a")
    wait_for([second], 5)
    assert not second.program().spent
    assert slow.count == 2
    made.close()


def test_answers_that_use_a_grammar_up_leave_it_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of one program share the library's states, of which there are so many and no more."""
    limits = llguidance.LLParserLimits(max_lexer_states=300, verbose_errors=False)
    monkeypatch.setattr("overdrive.grammar.guidance.LIMITS", limits)
    rng, made = random.Random(0), programs()
    ask = partial(made.ask, "regex", "([a-z ]*[ab][a-z ]{12})*")
    faults = [follow(rng, ask()) for _ in range(8)]
    assert any(faults)  # or nothing was used up
    assert not all(faults[-4:])
    made.close()


def follow(rng: random.Random, ticket: Ticket) -> bool:
    """An answer of 40 tokens at random; whether it came to a fault."""
    wait_for([ticket], 10)
    matcher, words = ticket.program().start(), np.zeros(2, np.int32)
    try:
        for _ in range(40):
            matcher.fill(words)
            matcher.accept(rng.choice([token for token in range(2, 64) if legal(words, token)]))
    except GrammarFault:
        return True
    return False


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
    wait_for([ticket], 10)
    assert ticket.program().start().forced()
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


MANY = json.dumps({"type": "object", "properties": {f"a{n}": {"type": "string"} for n in range(900)}})


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
    wait_for([ticket], 10)
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
