"""What the engine asks of a grammar library. Knows token ids and masks; never how a grammar is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from overdrive.errors import BadRequest

Words = NDArray[np.int32]
"""A mask: token t is legal where bit t % 32 of word t // 32 is set. [ceil(V / 32)]"""


WORD_END = re.compile(rb'"[,:}\]]{0,2}|[,}\]]{1,2}')
"""What ends strings and numbers in JSON."""

STRUCTURE = frozenset(b'"{}[],:')
"""What is not inside of them, strings with such text aside."""


class GrammarFault(Exception):
    """A matcher cannot go on: it refused a token that it had allowed. Ends one request, no other."""


class GrammarLimit(GrammarFault):
    """A matcher cannot go on, since the grammar leads to more than is followed: its author's doing."""


class GrammarSpent(GrammarLimit):
    """Answers have taken all that they may take of a program together: it must be compiled anew, not within a step."""

    def __init__(self) -> None:
        super().__init__("the grammar leads to more than can be followed; let it have smaller counts such as maxLength")


class GrammarAwaited(Exception):
    """An answer goes on when its program has been compiled anew. ready: the program then. No fault of anybody's."""

    def __init__(self, ready: Future[Program]) -> None:
        super().__init__("the grammar is being compiled anew")
        self.ready = ready


class NotNow(BadRequest):
    """A grammar was not compiled, by no fault of its own: it may be another time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="grammar_not_compiled", status=503)


@dataclass(frozen=True, slots=True)
class Vetted:
    """A grammar that was compiled once, in a process that could be killed.

    grammar: its text for the library. seconds: of the processor that it took. bytes: of memory that it took.
    """

    grammar: str
    seconds: float
    bytes: int


def mask_words(vocab_size: int) -> int:
    """Words of a mask."""
    return -(-vocab_size // 32)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that grammars are matched with.

    size: of the model's vocabulary, whose padding beyond `pieces` is never legal. pieces: the bytes of each id, special
    tokens by their names. special: ids that stand for no text. eos_ids: those that end an answer. encode: ids of a text
    as the tokenizer cuts it; drafts are better for it, and masks of text that is certain hold its token alone.
    begins_with_space: `encode` puts a space first that is not in the text (SentencePiece).
    """

    size: int
    pieces: Sequence[bytes]
    special: frozenset[int]
    eos_ids: tuple[int, ...]
    encode: Callable[[str], list[int]]
    begins_with_space: bool = False


def without_tokenizer(vocabulary: Vocabulary) -> Vocabulary:
    """The same tokens for another process, which need not know how a model's tokenizer cuts text."""
    return replace(vocabulary, pieces=tuple(vocabulary.pieces), encode=_not_at_all, begins_with_space=False)


def _not_at_all(text: str) -> list[int]:
    return []


class Lines(NamedTuple):
    """Masks one behind the other, as a library writes them: words: [M * W] int32, at `address`. width: W."""

    words: Words
    address: int
    width: int

    @staticmethod
    def of(bits: NDArray[np.int32]) -> Lines:
        """The lines of [M, W]. Raises ValueError where they do not lie one behind the other."""
        if not bits.flags.c_contiguous:
            raise ValueError("masks must lie one behind the other")
        return Lines(bits.reshape(-1), bits.ctypes.data, bits.shape[1])

    def has(self, line: int, token: int) -> bool:
        """Whether the mask of that line has the token."""
        return bool(self.words.item(line * self.width + (token >> 5)) >> (token & 31) & 1)


class Matcher(Protocol):
    """How far one answer has come in its grammar. End tokens are legal exactly where the answer may end."""

    @property
    def done(self) -> bool:
        """An end token was accepted: nothing follows, and nothing may be asked any more but `rollback`."""
        ...

    def fill(self, words: Words) -> None:
        """Write the mask of what may come next. Raises GrammarLimit where the library gives up."""
        ...

    def write(self, lines: Lines, line: int) -> bool:
        """`fill` by the library alone, in half the time. False where `fill` has to do it."""
        ...

    def accept(self, token: int) -> None:
        """Go on by one token. Raises GrammarFault where it is not legal, GrammarLimit where the library gives up; the
        matcher is of no use then."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        ...

    def forced(self) -> list[int]:
        """Tokens that certainly follow, perhaps none: for drafts, so nothing depends on them."""
        ...

    def branches(self, words: Words, most: int) -> list[list[int]]:
        """What certainly follows where a word ends here: at most so many runs, for drafts too.

        Each begins with a token that may come next and ends a word, and goes on with what is certain behind that.
        words: the mask here.
        """
        ...

    def goes_on(self, token: int) -> bool:
        """Whether a word that the token is in goes on behind it, so that the runs there are those before it. Likely."""
        ...


class Program(Protocol):
    """A compiled grammar."""

    def start(self) -> Matcher:
        """A matcher at its beginning. Where answers have used up what they share, it shares that with none of them.

        Raises, where that takes longer than a step can wait, GrammarAwaited; GrammarSpent where nobody is at it.
        """
        ...


class Compiler(Protocol):
    """Makes programs, in two steps of which only the second needs the process that is to have them. By any thread."""

    def compose(self, kind: str, source: str) -> str:
        """The library's grammar for `GrammarSpec.kind` and `.source`. Raises BadRequest, naming what is wrong."""
        ...

    def build(self, kind: str, source: str, grammar: str) -> Program:
        """The program of what `compose` made. Raises BadRequest, naming what is wrong."""
        ...


class WordEnds:
    """Tokens that end a string or a number: where a grammar leaves a choice, text goes on without one behind them.

    Those with quotes come first, since others do not end a string; of those longer ones, as models prefer them.
    """

    def __init__(self, vocabulary: Vocabulary, most: int = 64) -> None:
        pieces = vocabulary.pieces[: vocabulary.size]
        found = [t for t, piece in enumerate(pieces) if t not in vocabulary.special and WORD_END.fullmatch(piece)]
        found.sort(key=lambda token: (pieces[token][:1] != b'"', -len(pieces[token])))
        self.tokens = np.array(found[:most], np.int64)
        self.inside = bytes(bool(piece) and STRUCTURE.isdisjoint(piece) for piece in pieces)  # by token
        self._words, self._bits = self.tokens >> 5, (1 << (self.tokens & 31)).astype(np.int32)

    def legal(self, words: Words) -> list[int]:
        """Those that the mask has."""
        return self.tokens[(words[self._words] & self._bits) != 0].tolist()


def legal(words: Words, token: int) -> bool:
    """Whether the mask has the token."""
    return bool(words.item(token >> 5) >> (token & 31) & 1)


def only(tokens: Sequence[int], words: Words) -> None:
    """Write the mask that has these tokens alone."""
    words[:] = 0
    for token in tokens:
        words.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def all_but(tokens: Sequence[int], words: Words) -> None:
    """Write the mask that lacks these tokens alone."""
    only(tokens, words)
    np.invert(words, out=words)
