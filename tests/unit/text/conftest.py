"""Small vocabularies of the kinds that models bring, built in milliseconds, and SmolLM2's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from overdrive.model.smollm2 import smollm2_path
from overdrive.text import ByteTokenizer, Tokenizer, load_tokenizer
from tests.unit.text.vocabularies import byte_level_fields, sentencepiece_fields

WriteGguf = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Write a .gguf with the given `tokenizer.*` fields (dots of the key as in the file) and no tensors."""

    def write(fields: dict[str, Any], name: str = "model.gguf") -> Path:
        path = tmp_path / name
        writer = GGUFWriter(path, "llama")
        for key, value in fields.items():
            _add(writer, key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


@pytest.fixture(params=["bytes", "byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """One tokenizer of every kind, for the laws that hold for all."""
    if request.param == "bytes":
        return ByteTokenizer()
    fields = byte_level_fields() if request.param == "byte-level" else sentencepiece_fields()
    return load_tokenizer(request.getfixturevalue("write_gguf")(fields))


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """SmolLM2's .gguf, fetched once."""
    return smollm2_path(lambda label, done, total: None)
