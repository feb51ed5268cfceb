"""Grammars by llguidance (https://github.com/guidance-ai/llguidance). Nothing else in the engine knows it.

Its matchers never raise for what a grammar or a token does: they enter a state of error for good. That is found here
and told as GrammarFault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import llguidance
import numpy as np
from numpy.typing import NDArray

from overdrive.errors import BadRequest
from overdrive.grammar.base import GrammarFault, Vocabulary, Words, only, word_ends
from overdrive.grammar.schema import explain
from overdrive.grammar.sources import compose, one_line, read_schema

LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""What the matchers of one program may take together, since they share their lexer: about 100 MB where a grammar goes
as far as that, most take a thousandth; and, by the library's own limits on each step, about 20 ms for a mask."""


class GuidanceMatcher:
    """`Matcher`. End tokens are kept from the library but where a grammar names them: it accepts nothing behind one."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        eos_ids: tuple[int, ...],
        ends: NDArray[np.int64],
        on_limit: Callable[[], None] = lambda: None,
    ) -> None:
        """ends: `word_ends` of the vocabulary. on_limit: told when a mask is beyond the limits."""
        self._matcher = matcher
        self._on_limit = on_limit
        self._eos_ids = eos_ids
        self._ends = ends
        self._ended = False

    @property
    def done(self) -> bool:
        return self._ended

    def fill(self, words: Words) -> None:
        if self._matcher.is_stopped():
            self._check()
            only(self._eos_ids, words)
        else:
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            self._check()

    def accept(self, token: int) -> None:
        if self._ended:
            raise GrammarFault("the answer had ended already")
        if token in self._eos_ids and self._matcher.is_accepting():
            self._ended = True
        elif self._matcher.is_stopped() or not self._matcher.consume_token(token):
            raise GrammarFault(f"the grammar refuses token {token}{_because(self._matcher)}")

    def rollback(self, count: int) -> None:
        if count and self._ended:
            self._ended = False
            count -= 1
        if count and not self._matcher.rollback(count):
            raise GrammarFault(f"the grammar cannot go back{_because(self._matcher)}")

    def forced(self) -> list[int]:
        if self._ended:
            return []
        if self._matcher.is_stopped():
            return list(self._eos_ids[:1])
        return self._matcher.compute_ff_tokens()

    def branches(self, words: Words, most: int) -> list[list[int]]:
        certain = self.forced()
        if certain or self._ended:
            return [certain] if certain else []
        found = []
        open_ends = self._ends[(words[self._ends >> 5] >> (self._ends & 31) & 1) != 0]
        for token in open_ends[:most].tolist():
            self.accept(token)
            behind = self.forced()
            self.rollback(1)
            if behind:
                found.append([token, *behind])
        return found

    def _check(self) -> None:
        if self._matcher.is_error():
            self._on_limit()
            raise GrammarFault(f"the grammar exceeds its limits{_because(self._matcher)}")


class GuidanceProgram:
    """`Program`: a matcher that nobody moves. Its copies share the states of one lexer, and so what is left of them."""

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: tuple[int, ...], ends: NDArray[np.int64]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._ends = ends
        self._spent = False

    @property
    def spent(self) -> bool:
        return self._spent

    def start(self) -> GuidanceMatcher:
        return GuidanceMatcher(self._matcher.deep_copy(), self._eos_ids, self._ends, self._spend)

    def _spend(self) -> None:
        self._spent = True


class GuidanceCompiler:
    """`Compiler` for a vocabulary, which is read when the first grammar comes (a fraction of a second)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ends = word_ends(vocabulary)
        self._lock = threading.Lock()
        self._opened: list[llguidance.LLTokenizer] = []  # none yet, or the one

    def __call__(self, kind: str, source: str) -> GuidanceProgram:
        grammar = compose(kind, source)
        matcher = llguidance.LLMatcher(self._tokenizer(), grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise BadRequest(complaint(kind, source, matcher.get_error()))
        if not _begins(matcher.deep_copy()):
            raise BadRequest("the grammar cannot be used: no text follows it, or none that ends")
        _try_a_token(matcher.deep_copy(), self._vocabulary.eos_ids)
        return GuidanceProgram(matcher, self._vocabulary.eos_ids, self._ends)

    def _tokenizer(self) -> llguidance.LLTokenizer:
        with self._lock:
            if not self._opened:
                self._opened.append(open_tokenizer(self._vocabulary))
            return self._opened[0]


def _begins(matcher: llguidance.LLMatcher) -> bool:
    """Whether an answer can begin, and go on where it has no choice: not where rules lead into each other for ever."""
    matcher.compute_bitmask()
    forced = [] if matcher.is_error() or matcher.is_stopped() else matcher.compute_ff_tokens()
    if forced:
        matcher.consume_tokens(forced)
    return not matcher.is_error()


def _try_a_token(matcher: llguidance.LLMatcher, eos_ids: tuple[int, ...]) -> None:
    """Go on by a token that may come first and take it back, as walking along drafts does. Raises BadRequest where that
    is beyond the limits, and where the library cannot go back: not where a rule is cut."""
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    mask[list(eos_ids)] = 0
    first = int(mask.argmax())
    if not mask[first]:
        return
    if not matcher.consume_token(first):
        raise BadRequest(f"the grammar is beyond what can be followed{_because(matcher)}")
    if not matcher.rollback(1):
        raise BadRequest("the grammar cannot be used: max_tokens and stop of a rule are not supported")


def complaint(kind: str, source: str, said: str) -> str:
    """Why a source cannot be used, for whoever wrote it. said: by the library."""
    if kind == "json_schema":
        return explain(read_schema(source), one_line(said))
    return f"the {_NAMES[kind]} cannot be used: {one_line(said)}"


_NAMES = {
    "json_object": "JSON grammar",
    "regex": "regular expression",
    "choice": "list of choices",
    "lark": "grammar",
    "gbnf": "grammar",
}


def open_tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """The library's view of a vocabulary. Raises BadRequest where it has no end token, or none that it can read."""
    if not vocabulary.eos_ids:
        raise BadRequest("this model has no end token: constrained answers could not end")
    try:
        return llguidance.LLTokenizer(cast(Any, _Wrapped(vocabulary)), eos_token=list(vocabulary.eos_ids))
    except ValueError as error:
        raise BadRequest(f"this model's tokenizer cannot be used for constrained answers: {error}") from error


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

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids whose bytes are those of `text`: the tokenizer's, or, where it changes the text, the longest ones."""
        data = text.encode() if isinstance(text, str) else text
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


def _because(matcher: llguidance.LLMatcher) -> str:
    """The first line of what the library says, for people; "" where it says nothing."""
    said = one_line(matcher.get_error())
    return f": {said}" if said else ""
