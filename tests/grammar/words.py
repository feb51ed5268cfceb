"""A vocabulary of 64 tokens for the tiny model: letters, digits, the signs of JSON, some longer pieces, two ends."""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache

from overdrive.grammar.base import Vetted, Vocabulary
from overdrive.grammar.guidance import GuidanceCompiler
from overdrive.grammar.programs import Programs
from overdrive.grammar.sources import compose
from tests.patience import PATIENCE

EOS, END_OF_TURN = 0, 1

PIECES = [
    b"<eos>",
    b"<end>",
    b"<tool>",
    *(bytes([byte]) for byte in b'abcdefghlmnoprstu0123456789"{}[]:,. -'),
    *(b'": ', b'", "', b'{"', b'"}', b", ", b"true", b"false", b"null", b"ab", b"abc", b"no", b"name", b"age", b"12"),
    *(b"00", b"ad", b"the ", b"]}", b": ", b"-1", b"e", b"", b"", b""),
]


def encode(text: str) -> list[int]:
    """Longest pieces first, as no real tokenizer does it: what is certain is then seldom what stands alone."""
    ids, data = [], text.encode()
    while data:
        piece = max((p for p in PIECES[3:] if p and data.startswith(p)), key=len)
        ids.append(PIECES.index(piece))
        data = data[len(piece) :]
    return ids


def text_of(ids) -> bytes:
    """What a reader sees of an answer."""
    return b"".join(PIECES[token] for token in ids if token > 2)


VOCABULARY = Vocabulary(len(PIECES), PIECES, frozenset({0, 1, 2}), (EOS, END_OF_TURN), encode)


@lru_cache(maxsize=1)
def compiler() -> GuidanceCompiler:
    return GuidanceCompiler(VOCABULARY)


@lru_cache(maxsize=256)
def program(kind: str, source: str):
    return compiler()(kind, source)


def trust(kind: str, source: str, seconds: float) -> Future[Vetted]:
    """Takes every grammar for a good one, without a process that tries it."""
    future: Future[Vetted] = Future()
    try:
        future.set_result(Vetted(compose(kind, source), 0.0, 0))
    except Exception as error:
        future.set_exception(error)
    return future


def programs() -> Programs:
    return Programs(compiler(), trust, seconds=PATIENCE)
