"""Laws of the key that a client sends: the nearest source wins, and no message repeats a key."""

from __future__ import annotations

import pytest

from overdrive.api_keys import client_key
from overdrive.errors import OverdriveError

BOTH = {"OVERDRIVE_API_KEY": "own", "OPENAI_API_KEY": "openai"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# of the server\n\n  filed \nspare\n")
    return path


def test_the_command_line_wins_then_the_file_then_the_own_name(file):
    assert client_key("given", file, BOTH) == "given"
    assert client_key(None, file, BOTH) == "filed"
    assert client_key(None, None, BOTH) == "own"
    assert client_key(None, None, {**BOTH, "OVERDRIVE_API_KEY": " "}) == "openai"
    assert client_key(None, None, {}) == ""


def test_an_empty_key_on_the_command_line_sends_none(file):
    assert client_key("", file, BOTH) == ""


def test_a_file_without_a_key_is_an_error_whatever_the_environment_has(tmp_path):
    (tmp_path / "empty").write_text("# nothing\n")
    for path in (tmp_path / "empty", tmp_path / "none", tmp_path):
        with pytest.raises(OverdriveError, match=r"^--api-key-file"):
            client_key(None, path, BOTH)


def test_a_key_file_that_cannot_be_read_is_said_in_words(tmp_path):
    with pytest.raises(OverdriveError, match=r"none: no such file or directory$"):
        client_key(None, tmp_path / "none", {})


@pytest.mark.parametrize("key", ["two words", "a\nb", "\N{CYRILLIC SMALL LETTER A}", "secret\x00"])
def test_what_no_request_can_hold_is_named_by_its_source_and_never_repeated(tmp_path, key):
    file = tmp_path / "key"
    file.write_text(key.replace("\n", " "), encoding="utf-8")
    environ = {"OPENAI_API_KEY": key}
    sources = {"--api-key": (key, None), "--api-key-file": (None, file), "OPENAI_API_KEY": (None, None)}
    for source, given in sources.items():
        with pytest.raises(OverdriveError, match=rf"^{source}: ") as caught:
            client_key(*given, environ)
        assert key not in str(caught.value)
