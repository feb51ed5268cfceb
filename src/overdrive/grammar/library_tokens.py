"""A vocabulary as the grammar library reads it, and how certain text is cut into its tokens. Knows no grammars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import llguidance

from overdrive.errors import BadRequest
from overdrive.grammar.base import Vocabulary


def open_tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """The library's view of a vocabulary. Raises BadRequest where it has no end token, or none that it can read."""
    if not vocabulary.eos_ids:
        raise BadRequest("this model has no end token: constrained answers could not end")
    try:
        return llguidance.LLTokenizer(cast(Any, _Wrapped(vocabulary)), eos_token=list(vocabulary.eos_ids))
    except ValueError as error:
        raise BadRequest(f"this model's tokenizer cannot be used for constrained answers: {error}") from error


MOST_REMEMBERED, SHORT = 4096, 64
"""Texts whose tokens are remembered, and their most bytes: the same keys are certain again and again."""


class _Wrapped:
    """A vocabulary as `llguidance.TokenizerWrapper` has it, attribute by attribute."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        missing = vocabulary.size - len(vocabulary.pieces)
        self.tokens = [*vocabulary.pieces[: vocabulary.size], *[b""] * max(0, missing)]
        self.special_token_ids = sorted(vocabulary.special)
        self.eos_token_id = vocabulary.eos_ids[0]
        self._vocabulary = vocabulary
        self._longest = max(map(len, self.tokens), default=1)
        plain = (token for token in range(len(self.tokens) - 1, -1, -1) if token not in vocabulary.special)
        self._ids = {self.tokens[token]: token for token in plain}  # the lowest id of equal ones
        self._remembered = lru_cache(MOST_REMEMBERED)(self._cut)

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids whose bytes are those of `text`: the tokenizer's, or, where it changes the text, the longest ones."""
        data = text.encode() if isinstance(text, str) else text
        return self._remembered(data) if len(data) <= SHORT else self._cut(data)

    def _cut(self, data: bytes) -> list[int]:
        try:
            ids = self._encode(data.decode())
        except UnicodeDecodeError:
            return self._greedy(data)
        special = any(token in self._vocabulary.special for token in ids)
        return self._greedy(data) if special or self._joined(ids) != data else ids

    def _encode(self, text: str) -> list[int]:
        """As the tokenizer cuts it in the middle of a text: behind a new line, which takes the space that is put first.

        What does not fit is found by its bytes.
        """
        if not self._vocabulary.begins_with_space:
            return self._vocabulary.encode(text)
        before = self._vocabulary.encode("\n")
        return self._vocabulary.encode("\n" + text)[len(before) :]

    def _joined(self, ids: Sequence[int]) -> bytes:
        return b"".join([self.tokens[token] for token in ids])

    def _greedy(self, data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            stops = range(min(len(data), at + self._longest), at, -1)
            stop = next((stop for stop in stops if data[at:stop] in self._ids), None)
            if stop is None:
                return ids  # no token has this byte: what is forced is no more than what came before it
            ids.append(self._ids[data[at:stop]])
            at = stop
        return ids
