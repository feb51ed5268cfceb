"""Grammars without a model: whether one can be used, what it accepts, a sample of it. Tokens are bytes here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from overdrive.grammar.base import GrammarFault, Program, Vocabulary, legal, mask_words
from overdrive.grammar.guidance import GuidanceCompiler

END = 256

BYTES = Vocabulary(
    257, [*(bytes([byte]) for byte in range(256)), b"<end>"], frozenset({END}), (END,), lambda t: [*t.encode()]
)
"""A token for each byte, and one that ends an answer."""

CLOSERS = b'"}]'
SOONER = 0.4
"""Chance that a sample closes what can be closed."""


def byte_compiler() -> GuidanceCompiler:
    """Compiles grammars as every model's vocabulary would have them."""
    return GuidanceCompiler(BYTES)


def accepts(program: Program, text: str) -> bool:
    """Whether `text` is a whole sentence of the grammar."""
    matcher = program.start()
    try:
        for byte in text.encode("utf-8", errors="surrogatepass"):
            matcher.accept(byte)
        matcher.accept(END)
    except GrammarFault:
        return False
    return True


def as_written(value: Any) -> str:
    """A JSON value as constrained answers lay it out."""
    return json.dumps(value, ensure_ascii=False)


def sample(program: Program, rng: random.Random, longest: int = 4000) -> str:
    """A sentence, short rather than long: it ends and closes early. Raises GrammarFault where none so short is found.

    Where chance finds none (of multiples of 9,973, say), the digits and letters that come first may: 0 is one.
    """
    try:
        return _sentence(program, longest, lambda options: _choose(options, rng))
    except GrammarFault:
        return _sentence(program, longest, lambda options: min(options, key=_late))


def _sentence(program: Program, longest: int, choose: Callable[[list[int]], int]) -> str:
    matcher, words, written = program.start(), np.zeros(mask_words(BYTES.size), np.int32), bytearray()
    while len(written) < longest:
        matcher.fill(words)
        if legal(words, END):
            return written.decode("utf-8", errors="replace")
        options = [byte for byte in range(256) if legal(words, byte)]
        if not options:
            raise GrammarFault("nothing can follow: the grammar has no sentence that begins so")
        byte = choose(options)
        matcher.accept(byte)
        written.append(byte)
    raise GrammarFault(f"no sample of at most {longest} bytes was found")


def _late(byte: int) -> tuple[bool, bool, int]:
    """Closers first, then digits and letters in their order."""
    return byte not in CLOSERS, not chr(byte).isalnum(), byte


def _choose(options: list[int], rng: random.Random) -> int:
    closers = [byte for byte in options if byte in CLOSERS]
    if closers and rng.random() < SOONER:
        return rng.choice(closers)
    plain = [byte for byte in options if 97 <= byte <= 122] or [byte for byte in options if 48 <= byte <= 57]
    return rng.choice(plain or [byte for byte in options if 32 <= byte < 127] or options)
