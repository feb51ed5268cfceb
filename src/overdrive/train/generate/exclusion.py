"""Texts that must not be trained on: what shares 13 words in a row with them, or is the same, is recognised.

The rule and its length are those of the GPT-3 paper's contamination study (Brown et al., 2020, appendix C). Knows
words; must never know whose they are.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError, system_reason
from overdrive.json_text import parse_json

RUN = 13
_WORD = re.compile(r"\w+")


class Exclusions:
    """A set of texts. Letters' case and what stands between words make no difference."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._runs: set[int] = set()
        for text in texts:
            self._runs.update(_runs(text))

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Exclusions:
        """Every string anywhere in the rows of JSON-lines files, plain or gzipped; of a folder all such files.

        Raises OverdriveError, naming file and line, for what cannot be read, and for a folder without such files.
        """
        return cls(text for path in paths for file in _files(path) for text in _strings_of(file))

    def hits(self, text: str) -> bool:
        """Whether `text` equals an excluded one or has RUN words in a row of it."""
        return any(run in self._runs for run in _runs(text))

    def __len__(self) -> int:
        return len(self._runs)


def _runs(text: str) -> Iterator[int]:
    """Hashes of all runs of RUN words; of the whole text when it has fewer."""
    words = _WORD.findall(text.lower())
    if words:
        for start in range(max(1, len(words) - RUN + 1)):
            yield hash(tuple(words[start : start + RUN]))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.name.endswith((".jsonl", ".jsonl.gz")))
    if not found:
        raise OverdriveError(f"{path} holds no .jsonl file of texts to exclude")
    return found


def _strings_of(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line, row in enumerate(file, 1):
                if row.strip():
                    yield from _strings(_parsed(row, f"{path} line {line}"))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise OverdriveError(f"cannot read texts to exclude from {path}: {system_reason(error)}") from None


def _parsed(row: str, place: str) -> Any:
    try:
        return parse_json(row)
    except ValueError as error:
        raise OverdriveError(f"{place} is not JSON: {error}") from None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
