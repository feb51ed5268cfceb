"""Laws of the prompts file: what is read, and that what is wrong is named by file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from overdrive.errors import OverdriveError
from overdrive.text import ByteTokenizer, ChatTemplate
from overdrive.train.prompts import encode_prompts, read_prompts

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
GOOD = {"prompt": "hi"}


def write(folder: Path, *rows: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_the_three_forms_and_their_labels_are_read(tmp_path):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    path = write(
        tmp_path,
        {"prompt": "hi", "category": "qa", "license": "MIT", "source": "a", "id": 7, "other": []},
        "",
        {"messages": messages},
        {"turns": ["one", "two", "three"]},
    )
    first, second, third = read_prompts(path)
    assert (first.line, second.line, third.line) == (1, 3, 4)
    assert (first.id, first.category, first.license, first.source) == ("7", "qa", "MIT", "a")
    assert first.messages == ({"role": "user", "content": "hi"},) and second.messages == tuple(messages)
    assert third.messages[0]["content"] == "one" and third.later_turns == ("two", "three")


def test_compressed_files_read_the_same(tmp_path):
    plain = write(tmp_path, {"prompt": "ä"}, GOOD)
    packed = tmp_path / "prompts.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_prompts(packed) == read_prompts(plain)


@pytest.mark.parametrize(
    "row, said",
    [
        ("{not json", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ({"text": "hi"}, "line 2 has the fields text"),
        ({"prompt": "a", "turns": ["b"]}, "line 2 has prompt and turns"),
        ({"prompt": "  "}, "line 2: prompt must be"),
        ({"prompt": 3}, "line 2: prompt must be"),
        ({"turns": []}, "line 2: turns must be"),
        ({"messages": "hi"}, "line 2: messages must be"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"line 2: messages\[0\].role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "line 2: the last message must be the user's"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, said):
    with pytest.raises(OverdriveError, match=rf"prompts\.jsonl {said}"):
        read_prompts(write(tmp_path, GOOD, row, GOOD))


def test_empty_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(OverdriveError, match="holds no prompts"):
        read_prompts(write(tmp_path))
    with pytest.raises(OverdriveError, match=r"cannot read prompts from .*nowhere\.jsonl"):
        read_prompts(tmp_path / "nowhere.jsonl")
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "hi"}')[:-9])
    with pytest.raises(OverdriveError, match=r"cannot read prompts from .*bad\.jsonl\.gz"):
        read_prompts(tmp_path / "bad.jsonl.gz")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "hi"}\n{"prompt": "\xe4"}\n')
    with pytest.raises(OverdriveError, match=r"latin\.jsonl line 2 is not UTF-8"):
        read_prompts(tmp_path / "latin.jsonl")


def test_a_prompt_that_leaves_no_room_is_named_with_its_length(tmp_path):
    path = write(tmp_path, GOOD, {"prompt": "long " * 10})
    tokenizer = ByteTokenizer()
    template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens, "toy")
    prompts = read_prompts(path)
    short, long = encode_prompts(prompts, path, tokenizer, template, 200)
    assert bytes(short) == b"[user]hi[assistant]" and len(long) == 67
    with pytest.raises(OverdriveError, match=r"prompts\.jsonl line 2: the prompt has 67 tokens, but at most 66"):
        encode_prompts(prompts, path, tokenizer, template, 66)
    with pytest.raises(OverdriveError, match=r"line 1: .* has no chat template"):
        encode_prompts(prompts, path, tokenizer, ChatTemplate({}, {}, "toy"), 66)
