"""JSON of any depth is a value or a ValueError."""

from __future__ import annotations

import pytest

from overdrive.json_text import parse_json


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "{", "", b"\xff", "1" * 5000])
def test_what_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_json_is_read_from_text_and_bytes() -> None:
    assert parse_json('{"a": [1, null]}') == parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
