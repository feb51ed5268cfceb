"""Laws of the text of committed tokens: it depends on the tokens and on how they end, not on how they arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overdrive.text import ByteTokenizer, CommittedText
from overdrive.types import Finish, FinishReason

EOS = ByteTokenizer.EOS
LENGTH = Finish(FinishReason.LENGTH)


def read(ids, finish, cuts=(), stops=(), include_stop=False):
    """The text of `ids`, given in runs that end at `cuts`."""
    text = CommittedText(ByteTokenizer(), stops, include_stop)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    runs = [ids[a:b] for a, b in pairwise(bounds)]
    return "".join(map(text.take, runs[:-1])) + text.take(runs[-1], finish)


@given(st.text(max_size=20), st.lists(st.integers(0, 60), max_size=8))
def test_text_does_not_depend_on_how_tokens_arrive(text, cuts):
    assert read(list(text.encode()), LENGTH, cuts, stops=["ab", "b\n"]) == text


@given(st.text("ab ", max_size=12), st.lists(st.integers(0, 60), max_size=8), st.booleans())
def test_a_stop_string_is_cut_off_wherever_it_arrives(text, cuts, include):
    ids = list((text + "!?").encode())
    finish = Finish(FinishReason.STOP, stop_string=1)
    expected = text + "!?" if include else text
    assert read(ids, finish, cuts, stops=["never", "!?"], include_stop=include) == expected


@given(st.lists(st.integers(0, 8), max_size=4))
def test_a_stop_string_that_did_not_count_is_text(cuts):
    ids = list(b"a!?b!?")  # the first came before min_tokens
    assert read(ids, Finish(FinishReason.STOP, stop_string=0), cuts, stops=["!?"]) == "a!?b"


@pytest.mark.parametrize(("include", "shown"), [(False, "one"), (True, "one.")])
def test_a_stop_token_is_shown_only_when_asked(include, shown):
    ids = list(b"one.")
    assert read(ids, Finish(FinishReason.STOP, stop_token=ids[-1]), (1, 3), include_stop=include) == shown


def test_an_end_token_never_shows():
    ids = [*b"one", EOS]
    for include in (False, True):
        assert read(ids, Finish(FinishReason.STOP, stop_token=EOS), include_stop=include) == "one"


def test_an_answer_cut_in_a_character_ends_in_the_replacement_character():
    assert read(list("né".encode())[:-1], LENGTH) == "n\ufffd"
