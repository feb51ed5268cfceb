"""End tokens: legal where an answer may end, the last of it always, also where a grammar names one itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from overdrive.commit import Committer
from overdrive.errors import BadRequest
from overdrive.grammar.base import GrammarFault, GrammarLimit, Matcher, legal
from overdrive.grammar.constraint import Constrained
from overdrive.request import Request
from overdrive.types import Finish, FinishReason, GrammarSpec, SamplingParams

from .words import END_OF_TURN, EOS, PIECES, compiler

A, B = PIECES.index(b"a"), PIECES.index(b"b")


def options(matcher: Matcher) -> set[int]:
    words = np.zeros(2, np.int32)
    matcher.fill(words)
    return {token for token in range(64) if legal(words, token)}


def test_an_end_token_that_a_grammar_names_ends_the_answer() -> None:
    matcher = compiler()("lark", "start: A <end>\nA: /[ab]+/").start()
    assert options(matcher) & {EOS, END_OF_TURN} == set()
    matcher.accept(A)
    assert options(matcher) & {EOS, END_OF_TURN} == {END_OF_TURN}
    matcher.accept(END_OF_TURN)
    assert matcher.done
    with pytest.raises(GrammarFault, match="had ended"):
        matcher.accept(A)


def test_walks_along_named_ends_are_taken_back() -> None:
    matcher = compiler()("lark", "start: A <end>\nA: /[ab]+/").start()
    matcher.accept(A)
    before = options(matcher)
    for token in (B, END_OF_TURN):
        matcher.accept(token)
    matcher.rollback(2)
    assert not matcher.done
    assert options(matcher) == before
    matcher.accept(END_OF_TURN)
    assert matcher.done


def test_no_end_token_is_legal_where_more_has_to_follow() -> None:
    matcher = compiler()("lark", 'start: "a" (<end> "b" | "b" <end> | <eos>)').start()
    matcher.accept(A)
    assert options(matcher) == {B, EOS}
    with pytest.raises(GrammarFault):
        matcher.accept(END_OF_TURN)


def test_a_grammar_that_goes_on_behind_an_end_token_is_refused() -> None:
    with pytest.raises(BadRequest, match="follow an end token"):
        compiler()("lark", 'start: "a" <end> "b"')
    later = compiler()("lark", 'start: "a" "b"? (<end> | <eos>) "b"').start()
    later.accept(A)
    later.accept(B)
    with pytest.raises(GrammarLimit, match="follow an end token"):
        options(later)


def test_a_choice_of_an_end_tokens_name_is_text() -> None:
    """Names of special tokens stand for them in Lark alone."""
    matcher = compiler()("choice", json.dumps(["a", "ab"])).start()
    matcher.accept(A)
    assert options(matcher) >= {EOS, END_OF_TURN, B}


@pytest.mark.parametrize("stop_token_ids", [(), (EOS,)], ids=["ignore_eos", "its own"])
def test_a_grammars_end_ends_the_answer_whatever_ignores_end_tokens(stop_token_ids: tuple[int, ...]) -> None:
    grammar = GrammarSpec("regex", "ab?")
    request = Request("a", (1, 2), SamplingParams(max_tokens=9, stop_token_ids=stop_token_ids, grammar=grammar), 1)
    request.constraint = Constrained(compiler()(grammar.kind, grammar.source), (EOS, END_OF_TURN))
    assert Committer._take(request, [A, B, END_OF_TURN, A]) == [A, B, END_OF_TURN]
    assert request.finish == Finish(FinishReason.STOP, stop_token=END_OF_TURN)
