"""Stop strings: the engine's matcher and the server's cut agree with a naive search, for any tokens and any pieces."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overdrive.text.answer import AnswerText
from overdrive.text.pieces import TokenTable
from overdrive.text.stops import StopHit, StopMatcher
from overdrive.text.tokenizer import Tokenizer
from tests.loop.toy import ByteStops

ALPHABET = "ab é🎉"
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)
answers = st.lists(
    st.one_of(st.text(ALPHABET, max_size=4).map(str.encode), st.binary(max_size=3)),
    min_size=1,
    max_size=12,
)


class PieceTokenizer(Tokenizer):
    """Token i is the i-th of the given byte strings: any answer as any tokens."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(TokenTable(pieces, ()), {})

    def id_of(self, token: str) -> int | None:
        return None

    def _encode(self, text: str) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Cut:
    """Where an answer ends: the token that completes the stop, the bytes before the match, and its stop."""

    token: int
    begin: int
    stop: bytes


def naive_cut(pieces: Sequence[bytes], stops: Sequence[bytes], first_token: int = 0) -> Cut | None:
    """The match that ends first (of those the longest) among those that end in token `first_token` or later."""
    text, ends = b"".join(pieces), [len(b"".join(pieces[: n + 1])) for n in range(len(pieces))]
    begun = ends[first_token - 1] if first_token else 0
    for end in range(begun + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            token = next(n for n, token_end in enumerate(ends) if token_end >= end)
            return Cut(token, end - len(stop), stop)
    return None


def match(pieces: Sequence[bytes], stops: Sequence[bytes], first_token: int = 0) -> tuple[int, StopHit] | None:
    """What the engine finds when it takes one token after the other and ignores stops before `first_token`."""
    matcher = StopMatcher(stops, pieces)
    for token in range(len(pieces)):
        hit = matcher.push(token)
        if hit is not None and token >= first_token:
            return token, hit
    return None


@given(answers, stop_lists, st.integers(0, 4))
def test_matcher_finds_what_a_search_through_the_bytes_finds(
    pieces: list[bytes], stops: list[str], ignored: int
) -> None:
    encoded = [stop.encode() for stop in stops]
    ignored = min(ignored, len(pieces) - 1)
    cut, found = naive_cut(pieces, encoded, ignored), match(pieces, encoded, ignored)
    if cut is None:
        assert found is None
        return
    assert found is not None
    token, hit = found
    assert (token, encoded[hit.stop]) == (cut.token, cut.stop)
    assert len(b"".join(pieces[: token + 1])) - hit.back == cut.begin


@given(answers, stop_lists, st.booleans(), st.integers(0, 4), st.data())
def test_text_ends_at_the_stop_however_tokens_arrive(
    pieces: list[bytes], stops: list[str], include_stop: bool, ignored: int, data: st.DataObject
) -> None:
    encoded = [stop.encode() for stop in stops]
    ignored = min(ignored, len(pieces) - 1)
    cut, found = naive_cut(pieces, encoded, ignored), match(pieces, encoded, ignored)
    whole = b"".join(pieces)
    kept = len(whole) if cut is None else cut.begin + (len(cut.stop) if include_stop else 0)
    ids = range(len(pieces) if found is None else found[0] + 1)
    last_run = data.draw(st.integers(1, len(ids)), "tokens in the finish")
    answer = AnswerText(PieceTokenizer(pieces), stops, include_stop)
    shown, at = "", 0
    while at < len(ids) - last_run:
        run = data.draw(st.integers(1, len(ids) - last_run - at), "tokens in a chunk")
        shown += answer.push(ids[at : at + run])
        at += run
        assert whole[:kept].decode(errors="replace").startswith(shown)
    shown += answer.finish(ids[at:], None if found is None else found[1])
    assert shown == whole[:kept].decode(errors="replace")


@given(answers, stop_lists)
def test_nothing_is_held_back_that_cannot_begin_a_stop(pieces: list[bytes], stops: list[str]) -> None:
    encoded = [stop.encode() for stop in stops]
    answer, matcher = AnswerText(PieceTokenizer(pieces), stops), StopMatcher(encoded, pieces)
    shown, seen = "", b""
    for token, piece in enumerate(pieces):
        if matcher.push(token) is not None:
            return
        shown += answer.push([token])
        seen += piece
        held = max(
            (n for n in range(len(seen) + 1) if any(s.startswith(seen[len(seen) - n :]) for s in encoded)), default=0
        )
        sure = seen[: len(seen) - held].decode(errors="ignore")
        assert len(shown) >= len(sure)


def test_stop_inside_one_token_keeps_what_stands_before_it() -> None:
    pieces = [b"so ", b"far END. More"]
    found = match(pieces, [b"END"])
    assert found == (1, StopHit(stop=0, back=len("END. More")))
    answer = AnswerText(PieceTokenizer(pieces), ["END"])
    assert answer.push([0]) + answer.finish([1], found[1]) == "so far "


def test_overlapping_stops_the_one_that_ends_first_counts() -> None:
    assert match([b"xabcd"], [b"abcd", b"bc"]) == (0, StopHit(stop=1, back=3))


def test_stops_that_end_together_the_longest_counts() -> None:
    assert match([b"x", b"a", b"b"], [b"b", b"ab"]) == (2, StopHit(stop=1, back=2))


def ab(least: int, most: int) -> st.SearchStrategy[bytes]:
    return st.text("ab", min_size=least, max_size=most).map(str.encode)


@example(stops=[b"b", b"ab"], text=b"ab")  # found by `make fuzz`, of the engine against its oracle
@given(stops=st.lists(ab(1, 3), max_size=3), text=ab(0, 8))
def test_the_plain_watch_of_the_engines_oracle_agrees(stops: list[bytes], text: bytes) -> None:
    matcher, plain = StopMatcher(stops, [bytes([byte]) for byte in range(256)]), ByteStops(stops)
    for byte in text:
        assert matcher.push(byte) == plain.push(byte)


def test_stop_crosses_tokens_that_split_a_character() -> None:
    first, second = "🎉".encode()[:2], "🎉".encode()[2:]
    pieces = [b"yes", first, second]
    found = match(pieces, ["🎉".encode()])
    assert found == (2, StopHit(stop=0, back=4))
    answer = AnswerText(PieceTokenizer(pieces), ["🎉"])
    assert answer.push([0, 1]) == "yes"
    assert answer.finish([2], found[1]) == ""


def test_beginning_of_a_stop_is_shown_when_the_answer_ends_without_it() -> None:
    answer = AnswerText(PieceTokenizer([b"one", b"EN"]), ["END"])
    assert [answer.push([0, 1]), answer.finish()] == ["one", "EN"]


def test_ids_outside_the_table_add_nothing() -> None:
    matcher = StopMatcher([b"ab"], [b"a", b"b"])
    assert [matcher.push(0), matcher.push(999), matcher.push(-1), matcher.push(1)] == [None, None, None, StopHit(0, 2)]


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([b"a", b""], [])


def test_engine_side_needs_neither_torch_nor_tokenizers() -> None:
    code = (
        "import sys; from overdrive.text import StopMatcher; print(sorted({'torch', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
