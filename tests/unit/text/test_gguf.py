"""Tokenizers out of GGUF files: metadata as the gguf package wrote it, and the rules of each family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.errors import OverdriveError
from overdrive.gguf_file import read_metadata
from overdrive.text import Tokenizer, load_chat_template, load_tokenizer
from overdrive.text.gguf_tokenizer import merges_from_scores
from tests.unit.text.vocabularies import byte_level_fields, sentencepiece_fields

WriteGguf = Callable[..., Path]


def pieces(tokenizer: Tokenizer, text: str, add_special: bool = False) -> list[bytes]:
    return [tokenizer.bytes_of(token) for token in tokenizer.encode(text, add_special)]


def test_metadata_is_read_as_written(write_gguf: WriteGguf) -> None:
    fields = {"a.text": "né", "a.flag": True, "a.count": 7, "a.words": ["x", "", "é"], "a.floats": [0.5, -1.0]}
    found = read_metadata(write_gguf(fields))
    assert {key: found[key] for key in fields} == fields
    assert set(read_metadata(write_gguf(fields), lambda key: key == "a.count")) == {"a.count"}


@pytest.mark.parametrize("content", [b"", b"GGML" + bytes(40), b"GGUF" + (9).to_bytes(4, "little") + bytes(16)])
def test_file_that_is_no_gguf_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(OverdriveError, match=r"odd\.gguf"):
        read_metadata(path)


def test_metadata_cut_anywhere_is_an_error(write_gguf: WriteGguf, tmp_path: Path) -> None:
    whole = write_gguf({"a.text": "word", "a.words": ["x", "y"], "a.floats": [0.5]}).read_bytes()
    cut = tmp_path / "cut.gguf"
    last = whole.rindex(b"a.floats") + len("a.floats") + 4 + 4 + 8 + 4
    for length in range(4, last):
        cut.write_bytes(whole[:length])
        with pytest.raises(OverdriveError, match="damaged"):
            read_metadata(cut)


def test_smollm_splits_digits_and_gpt2_does_not(write_gguf: WriteGguf) -> None:
    smollm = load_tokenizer(write_gguf(byte_level_fields("smollm")))
    gpt2 = load_tokenizer(write_gguf(byte_level_fields("gpt-2")))
    assert pieces(smollm, "123") == [b"1", b"2", b"3"]
    assert pieces(gpt2, "123") == [b"123"]


def test_llama3_takes_digits_by_three_and_whole_words_first(write_gguf: WriteGguf) -> None:
    tokenizer = load_tokenizer(write_gguf(byte_level_fields("llama-bpe")))
    assert pieces(tokenizer, "12312") == [b"123", b"12"]
    assert pieces(tokenizer, "hello", add_special=True) == [b"<|start|>", b"hello"]


def test_qwen2_composes_characters(write_gguf: WriteGguf) -> None:
    tokenizer = load_tokenizer(write_gguf(byte_level_fields("qwen2")))
    assert tokenizer.encode("e\u0301", add_special=False) == tokenizer.encode("\u00e9", add_special=False)
    assert pieces(tokenizer, "12") == [b"1", b"2"]


def test_user_defined_tokens_are_found_whole_and_stay_visible(write_gguf: WriteGguf) -> None:
    tokenizer = load_tokenizer(write_gguf(byte_level_fields()))
    assert pieces(tokenizer, "a<tool>") == [b"a", b"<tool>"]
    assert tokenizer.decode(tokenizer.encode("a<tool><|end|>", add_special=False)) == "a<tool>"


@pytest.mark.parametrize("flag", [True, False])
def test_bos_follows_the_file(write_gguf: WriteGguf, flag: bool) -> None:
    for fields in (byte_level_fields, sentencepiece_fields):
        tokenizer = load_tokenizer(write_gguf(fields(add_bos_token=flag)))
        assert tokenizer.encode("hello", add_special=True).count(tokenizer.bos) == flag


def test_bos_in_the_text_is_not_doubled(write_gguf: WriteGguf) -> None:
    tokenizer = load_tokenizer(write_gguf(byte_level_fields(add_bos_token=True)))
    assert pieces(tokenizer, "<|start|>hello", add_special=True) == [b"<|start|>", b"hello"]


def test_end_tokens_are_those_the_file_names_and_a_turn_end_known_by_name(write_gguf: WriteGguf) -> None:
    named = byte_level_fields(eot_token_id=5)
    assert load_tokenizer(write_gguf(named)).eos_ids == (1, 5)
    silent = byte_level_fields()
    silent["tokenizer.ggml.tokens"][0] = "<|im_end|>"
    assert load_tokenizer(write_gguf(silent)).eos_ids == (1, 0)


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(write_gguf: WriteGguf) -> None:
    tokenizer = load_tokenizer(write_gguf(sentencepiece_fields()))
    assert pieces(tokenizer, "hello wor", add_special=True) == [b"<s>", b" hello", b" wor"]
    assert pieces(tokenizer, "é") == [b" ", b"\xc3", b"\xa9"]


def test_sentencepiece_without_a_space_prefix_adds_none(write_gguf: WriteGguf) -> None:
    tokenizer = load_tokenizer(write_gguf(sentencepiece_fields(add_space_prefix=False)))
    ids = tokenizer.encode(" hello", add_special=False)
    assert [tokenizer.bytes_of(token) for token in ids] == [b" hello"]
    assert tokenizer.decode(ids) == " hello"


def test_merges_come_best_score_first_with_every_split() -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}
    scores = [0.0, 0.0, -2.0, -1.0, -3.0]
    assert merges_from_scores(vocabulary, scores) == [("a", "ba"), ("ab", "a"), ("a", "b"), ("b", "a")]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "no tokenizer"),
        (byte_level_fields(pre="klingon"), "klingon"),
        (byte_level_fields(model="bert"), "bert"),
        (byte_level_fields(merges=["no such"]), "cannot be built"),
        (sentencepiece_fields(scores=[1.0]), "scores"),
    ],
)
def test_unusable_tokenizer_is_named(write_gguf: WriteGguf, fields: dict, said: str) -> None:
    with pytest.raises(OverdriveError, match=said):
        load_tokenizer(write_gguf(fields))


def test_template_of_the_file_writes_its_tokens(write_gguf: WriteGguf) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    path = write_gguf(byte_level_fields(add_bos_token=True) | {"tokenizer.chat_template": template})
    tokenizer = load_tokenizer(path)
    prompt = load_chat_template(path, tokenizer).render([{"role": "user", "content": "hello"}])
    assert prompt == "<|start|>hello<|end|>"
    for add_special in (False, True):
        assert pieces(tokenizer, prompt, add_special) == [b"<|start|>", b"hello", b"<|end|>"]
