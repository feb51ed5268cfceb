"""Where an answer takes a grammar beyond the library's limits: they are had anew, as long as that helps."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import llguidance
import pytest

from overdrive.commit import Committer
from overdrive.grammar.base import GrammarAwaited, GrammarLimit, GrammarSpent, legal
from overdrive.grammar.constraint import TRIES, Constrained
from overdrive.grammar.crew import Crew
from overdrive.grammar.guidance import GuidanceCompiler
from overdrive.grammar.lasting import Lasting
from overdrive.grammar.sheet import blank_sheet
from overdrive.request import Request
from overdrive.types import FinishReason, GrammarSpec, SamplingParams
from tests.patience import PATIENCE

from .words import EOS, VOCABULARY, encode

MANY_STATES = "([a-z ]*[ab][a-z ]{12})*"
COUNTED = '{"type": "string", "maxLength": 2000}'


def few_states(monkeypatch: pytest.MonkeyPatch, states: int) -> GuidanceCompiler:
    limits = llguidance.LLParserLimits(max_lexer_states=states, verbose_errors=False)
    monkeypatch.setattr("overdrive.grammar.guidance.LIMITS", limits)
    return GuidanceCompiler(VOCABULARY)


def follow(constraint: Constrained, rng: random.Random, most: int) -> int:
    """How many tokens of an answer at random, drafts looked at before each, come before its fault."""
    for length in range(most):
        sheet = blank_sheet(1, 1, 4, 2, (3, 4))
        filled = constraint.walk([rng.randrange(3, 64) for _ in range(3)], sheet.bits, sheet.forced[0])
        options = [token for token in range(2, 64) if legal(sheet.bits[0], token)] if filled else [EOS]
        try:
            constraint.accept(rng.choice(options))
        except GrammarLimit:
            return length
    return most


def test_answers_that_use_up_a_lexer_have_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share it, so one may be faulted by what the others have taken; none is."""
    program = few_states(monkeypatch, 400)("regex", MANY_STATES)
    first, rng = program.matcher, random.Random(0)
    assert [follow(Constrained(program, (EOS,)), rng, 40) for _ in range(8)] == [40] * 8
    assert program.matcher is not first


def test_masks_do_not_change_by_a_new_lexer(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty = Constrained(GuidanceCompiler(VOCABULARY)("json_schema", COUNTED), (EOS,))
    program = few_states(monkeypatch, 650)("json_schema", COUNTED)
    little, first = Constrained(program, (EOS,)), program.matcher
    for token in encode('"' + "the name " * 60):
        lines = [blank_sheet(1, 1, 1, 2, (3, 4)) for _ in range(2)]
        for constraint, sheet in zip((plenty, little), lines, strict=True):
            assert constraint.walk([], sheet.bits, sheet.forced[0]) == 1
            constraint.accept(token)
        assert (lines[0].bits == lines[1].bits).all()
    assert program.matcher is not first


def test_a_grammar_that_is_slow_to_compile_is_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.grammar.guidance.RENEWAL_SECONDS", -1.0)
    program = few_states(monkeypatch, 400)("regex", MANY_STATES)
    rng = random.Random(0)
    while follow(Constrained(program, (EOS,)), rng, 40) == 40:
        pass
    with pytest.raises(GrammarSpent):
        program.start()


def test_a_grammar_beyond_the_limits_is_not_compiled_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that a new lexer brings no further has come to its end."""
    monkeypatch.setattr("overdrive.grammar.guidance.RENEWAL_SECONDS", -1.0)
    program = Lasting(partial(few_states(monkeypatch, 300), "json_schema", COUNTED), Crew(1, nice=0), 1.0)
    constraint, waits, sheet = Constrained(program, (EOS,)), [], blank_sheet(1, 1, 1, 2, (3, 4))
    tokens = encode('"' + "the name " * 100)
    with pytest.raises(GrammarLimit, match="more than can be followed"):
        while True:
            constraint.walk([], sheet.bits, sheet.forced[0])
            try:
                constraint.accept(tokens[len(constraint._accepted)])
            except GrammarAwaited as wait:
                wait.ready.result(PATIENCE)
                with pytest.raises(GrammarAwaited):  # by what was drawn without a mask
                    constraint.accept(tokens[0])
                assert constraint.walk([], sheet.bits, sheet.forced[0]) == 0
                constraint.resume()
                waits.append(len(constraint._accepted))
    assert waits and max(Counter(waits).values()) < TRIES


def test_the_word_for_it_is_a_400(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=2000, grammar=GrammarSpec("json_schema", COUNTED))
    request = Request("a", (1, 2), params, 1)
    request.constraint = Constrained(few_states(monkeypatch, 300)("json_schema", COUNTED), (EOS,))
    sheet, tokens = blank_sheet(1, 1, 1, 2, (3, 4)), encode('"' + "the name " * 100)
    while request.finish is None:
        request.constraint.walk([], sheet.bits, sheet.forced[0])
        Committer._take(request, tokens[request.output_len :][:1])
    assert 0 < request.output_len < len(tokens)
    assert request.finish.reason is FinishReason.ERROR
    assert request.finish.status == 400
    assert "maxLength" in request.finish.message
    assert "\n" not in request.finish.message


def test_a_refused_token_stays_a_fault_of_the_engine() -> None:
    request = Request("a", (1, 2), SamplingParams(max_tokens=9), 1)
    request.constraint = Constrained(GuidanceCompiler(VOCABULARY)("regex", "[0-9]"), (EOS,))
    assert Committer._take(request, encode("ab")) == []
    assert request.finish.status == 500
