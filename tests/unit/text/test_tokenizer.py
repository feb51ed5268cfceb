"""Laws of every tokenizer: round trips, one BOS, bytes that agree with text."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overdrive.errors import BadRequest
from overdrive.text import ByteTokenizer, Tokenizer
from overdrive.text.pieces import REPLACEMENT

for_every_tokenizer = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text().filter(lambda text: REPLACEMENT not in text)  # which SentencePiece cannot tell from a space


@for_every_tokenizer
@given(texts)
def test_decoding_returns_the_encoded_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special=True)) == text


@for_every_tokenizer
@given(st.lists(st.integers(0, 300), max_size=20))
def test_token_bytes_are_what_decoding_joins(tokenizer: Tokenizer, ids: list[int]) -> None:
    table = tokenizer.token_bytes()
    joined = b"".join(table[token] for token in ids if token < len(table))
    assert joined.decode(errors="replace") == tokenizer.decode(ids, continues=True)


def test_special_tokens_add_nothing_and_show_by_name_when_asked(tokenizer: Tokenizer) -> None:
    end = tokenizer.eos_ids[0]
    name = tokenizer.special_tokens["eos_token"]
    assert tokenizer.token_bytes()[end] == b""
    assert tokenizer.bytes_of(end) == name.encode()
    ids = [*tokenizer.encode("hello", add_special=False), end]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special=False) == "hello" + name


def test_every_id_has_bytes_and_names_lead_to_ids(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.token_bytes()) == tokenizer.vocab_size
    assert tokenizer.id_of(tokenizer.special_tokens["bos_token"]) == tokenizer.bos
    assert tokenizer.id_of("no such token") is None
    assert tokenizer.bytes_of(tokenizer.vocab_size) == b""


def test_text_that_writes_bos_gets_no_second_one(tokenizer: Tokenizer) -> None:
    bos = tokenizer.bos
    tokenizer.prefix = (bos,)
    written = [bos, *tokenizer.encode("hello", add_special=False)]
    tokenizer._encode = lambda text: list(written)  # as vocabularies do that read special tokens in texts
    assert tokenizer.encode("<bos>hello", add_special=True) == written


def test_lone_surrogate_is_refused_by_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadRequest, match=r"\\ud83d at character 2"):
        tokenizer.encode("ab\ud83d", add_special=False)


def test_byte_tokenizer_is_bytes_and_three_specials() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("é", add_special=True) == [256, 0xC3, 0xA9]
    assert (tokenizer.bos, tokenizer.eos_ids, tokenizer.id_of("a")) == (256, (257,), 97)
