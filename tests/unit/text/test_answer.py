"""Streaming text equals text decoded at once, for any ids and any way of cutting them into runs."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overdrive.text.answer import AnswerText
from overdrive.text.pieces import REPLACEMENT
from overdrive.text.tokenizer import Tokenizer

for_every_tokenizer = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def runs(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    """`ids` cut at random places."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6), "cuts"))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@for_every_tokenizer
@given(st.data())
def test_pushes_and_finish_equal_decode_for_any_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    spaced = [token for token, piece in enumerate(tokenizer.token_bytes()) if piece.startswith(b" ")]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2) | st.sampled_from(spaced), max_size=40), "ids")
    stream = AnswerText(tokenizer)
    text = "".join(stream.push(run) for run in runs(data, ids)) + stream.finish()
    assert text == tokenizer.decode(ids, continues=True)


@for_every_tokenizer
@given(st.data(), st.text(min_size=1).filter(lambda text: REPLACEMENT not in text))
def test_streamed_characters_are_never_split(tokenizer: Tokenizer, data: st.DataObject, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False)
    stream = AnswerText(tokenizer)
    pieces = [stream.push(run) for run in runs(data, ids)]
    assert "".join(pieces) == tokenizer.decode(ids, continues=True)
    assert text in "".join(pieces)
    assert stream.finish() == ""


@for_every_tokenizer
@given(st.text(min_size=1), st.text(min_size=1))
def test_answer_continues_its_prompt(tokenizer: Tokenizer, prompt: str, answer: str) -> None:
    before = tokenizer.encode(prompt, add_special=True)
    after = tokenizer.encode(answer, add_special=False)
    stream = AnswerText(tokenizer)
    added = stream.push(after) + stream.finish()
    assert tokenizer.decode(before) + added == tokenizer.decode(before + after)


def test_run_of_invalid_bytes_comes_out_while_it_grows(tokenizer: Tokenizer) -> None:
    byte = tokenizer.token_bytes().index(b"\xff")
    stream = AnswerText(tokenizer)
    assert [stream.push([byte]) for _ in range(3)] == ["\ufffd"] * 3
