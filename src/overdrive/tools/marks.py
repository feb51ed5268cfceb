"""Marks in a text that arrives in pieces."""

from __future__ import annotations

SPACE = " \t\r\n"


def begun(text: str, mark: str) -> int:
    """Length of the longest end of `text` that may be the beginning of `mark`."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


def settled(text: str, mark: str) -> int:
    """How much of `text` stands whatever follows, where white space before `mark` does not count."""
    return len(text[: len(text) - begun(text, mark)].rstrip(SPACE))
