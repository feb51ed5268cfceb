"""A byte vocabulary with a few tokens more, and llguidance over it: what a grammar says of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from overdrive.text import ByteTokenizer
from overdrive.text.pieces import TokenTable


class MarkedTokenizer(ByteTokenizer):
    """Bytes, and `marks` as tokens of their own: special ones unless `plain`."""

    def __init__(self, marks: Sequence[str], plain: bool = False) -> None:
        super().__init__()
        self._marks = {mark: len(self.table.pieces) + place for place, mark in enumerate(marks)}
        special = {*self.table.special, *(() if plain else self._marks.values())}
        self.table = TokenTable([*self.table.pieces, *(mark.encode() for mark in marks)], special)

    def id_of(self, token: str) -> int | None:
        return self._marks.get(token, super().id_of(token))

    def _encode(self, text: str) -> list[int]:
        ids = []
        while text:
            mark = next((mark for mark in self._marks if text.startswith(mark)), "")
            ids += [self._marks[mark]] if mark else list(text[0].encode())
            text = text[len(mark) or 1 :]
        return ids


class _Vocabulary:
    eos_token_id = ByteTokenizer.EOS
    bos_token_id = ByteTokenizer.BOS
    unique = True

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        table = tokenizer.table
        self.special_token_ids = sorted(table.special)
        self.tokens = list(table.pieces)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def allows(grammar: str, tokenizer: ByteTokenizer, ids: Sequence[int]) -> str:
    """ "no", "begins" for an answer that must go on, or "whole"."""
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer))), grammar)
    assert not matcher.is_error(), matcher.get_error()
    if matcher.try_consume_tokens(list(ids)) < len(ids):
        return "no"
    return "whole" if matcher.is_accepting() else "begins"
