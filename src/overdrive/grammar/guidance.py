"""Grammars by llguidance (https://github.com/guidance-ai/llguidance): its matchers and programs, and their limits.

Its matchers never raise for what a grammar or a token does: they enter a state of error for good. That is found here
and told as GrammarFault.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import llguidance
import numpy as np

from overdrive.errors import BadRequest
from overdrive.grammar.base import (
    GrammarFault,
    GrammarLimit,
    GrammarSpent,
    Lines,
    Vocabulary,
    WordEnds,
    Words,
    legal,
    mask_words,
    only,
)
from overdrive.grammar.blame import blame
from overdrive.grammar.library_tokens import open_tokenizer
from overdrive.grammar.schema import Schema, explain
from overdrive.grammar.sources import compose, one_line, read_schema, schema_grammar

LIMITS = llguidance.LLParserLimits(max_lexer_states=100_000, max_items_in_row=8_000, verbose_errors=False)
"""What the matchers of one program may take together, since they share their lexer: about 200 MB where a grammar goes
as far as that, most take a thousandth; and, by the library's own limits on each step, about 20 ms for a mask."""

RENEWAL_SECONDS = 0.02
"""A program that took no longer to compile, as long as a mask may take, is compiled again in the middle of a step where
its lexer is used up."""


MORE_BEHIND = "the grammar cannot be used: it has more follow an end token, behind which no answer goes on"
LESS = "let it have fewer alternatives at once, or smaller counts such as maxLength"

REFUSED, USED_UP = "doesn't satisfy the grammar", "too many states"
"""What the library says of a token that is not legal, and of a lexer that has all the states that it may have."""


class GuidanceMatcher:
    """`Matcher`. End tokens are kept from the library: it accepts nothing behind one, and cannot go back behind one
    that a grammar names (https://github.com/guidance-ai/llguidance/pull/364).

    One that a grammar names is legal where the answer may end behind it, so that an end token is always the last.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        eos_ids: tuple[int, ...],
        ends: WordEnds,
        words: int,
        used_up: Callable[[], bool],
    ) -> None:
        """words: of a mask. used_up: whether the lexer has no states left; asked after a fault."""
        self._matcher = matcher
        self._mask = np.zeros(words, np.int32)
        self._address = self._mask.ctypes.data  # to look it up takes longer than to copy the mask from there
        self._used_up = used_up
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
            self._matcher.unsafe_compute_mask_ptr(self._address, self._mask.nbytes)
            self._check()
            words[:] = self._mask
            ends = [token for token in self._eos_ids if legal(words, token)]
            if ends and not self._matcher.is_accepting():
                self._leave_out([token for token in ends if not self._may_end_with(token)], words)

    def write(self, lines: Lines, line: int) -> bool:
        matcher, size = self._matcher, 4 * lines.width
        if self._ended or matcher.is_stopped():
            return False
        matcher.unsafe_compute_mask_ptr(lines.address + line * size, size)
        if matcher.is_error():
            return False
        ends = [token for token in self._eos_ids if lines.has(line, token)]
        return not ends or matcher.is_accepting()  # else some may have to be left out

    def accept(self, token: int) -> None:
        if self._ended:
            raise GrammarFault("the answer had ended already")
        if token in self._eos_ids:
            if not (self._matcher.is_accepting() or self._may_end_with(token)):
                raise GrammarFault(f"the grammar refuses token {token}: the answer may not end here")
            self._ended = True
        elif self._matcher.is_stopped() or not self._matcher.consume_token(token):
            self._check(refused=token)
            raise GrammarFault(f"the grammar refuses token {token}: the answer was whole")

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
        return self._matcher.compute_ff_tokens() if self._matcher.compute_ff_bytes() else []  # bytes are found sooner

    def branches(self, words: Words, most: int) -> list[list[int]]:
        found = []
        for token in self._ends.legal(words)[:most]:
            self.accept(token)
            behind = self.forced()
            self.rollback(1)
            if behind:
                found.append([token, *behind])
        return found

    def goes_on(self, token: int) -> bool:
        return bool(self._ends.inside[token])

    def _may_end_with(self, token: int) -> bool:
        """Whether the grammar names this end token here, and nothing has to follow it."""
        copy = self._matcher.deep_copy()
        return copy.consume_token(token) and copy.is_accepting()

    @staticmethod
    def _leave_out(tokens: Sequence[int], words: Words) -> None:
        """Of a mask. Raises GrammarLimit where it has no others."""
        for token in tokens:
            words.view(np.uint32)[token >> 5] &= ~np.uint32(1 << (token & 31))
        if tokens and not words.any():
            raise GrammarLimit(MORE_BEHIND)

    def _check(self, refused: int = -1) -> None:
        if not self._matcher.is_error():
            return
        used_up = self._used_up()  # a lexer without states left refuses what it has allowed
        if refused >= 0 and not used_up and REFUSED in self._matcher.get_error():
            raise GrammarFault(f"the grammar refuses token {refused}{_because(self._matcher)}")
        raise GrammarLimit(f"the grammar leads to more than can be followed{_because(self._matcher)}; {LESS}")


class GuidanceProgram:
    """`Program`: a matcher that nobody moves. Its copies share the states of one lexer, and so what is left of them.

    When they are used up, a new one takes its place: states that masks have led to are not needed again, those on the
    way that an answer has come are few. Where that takes longer, it is for others to have the program built again.
    """

    def __init__(
        self, open_matcher: Callable[[], llguidance.LLMatcher], eos_ids: tuple[int, ...], ends: WordEnds, words: int
    ) -> None:
        """open_matcher: compiles it. words: of a mask."""
        self._open = open_matcher
        self._eos_ids = eos_ids
        self._ends = ends
        self._words = words
        self._lock = threading.Lock()
        self._used_up = False
        started = time.thread_time()
        self.matcher = open_matcher()
        self._seconds = time.thread_time() - started

    def start(self) -> GuidanceMatcher:
        with self._lock:
            if self._used_up:
                if self._seconds > RENEWAL_SECONDS:
                    raise GrammarSpent
                self.matcher, self._used_up = self._open(), False
            origin = self.matcher
        used_up = partial(self._is_used_up, origin)
        return GuidanceMatcher(origin.deep_copy(), self._eos_ids, self._ends, self._words, used_up)

    def _is_used_up(self, origin: llguidance.LLMatcher) -> bool:
        """Whether the lexer that copies of `origin` share has no states left: none of them can go on then."""
        probe = origin.deep_copy()
        probe.compute_bitmask()
        found = USED_UP in probe.get_error()
        with self._lock:
            self._used_up = self._used_up or (found and origin is self.matcher)
        return found


class GuidanceCompiler:
    """`Compiler` for a vocabulary, which is read when the first grammar comes (a fraction of a second)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ends = WordEnds(vocabulary)
        self._lock = threading.Lock()
        self._opened: list[llguidance.LLTokenizer] = []  # none yet, or the one

    def __call__(self, kind: str, source: str) -> GuidanceProgram:
        """Both steps at once, for whoever trusts the source."""
        return self.build(kind, source, self.compose(kind, source))

    def compose(self, kind: str, source: str) -> str:
        return compose(kind, source)

    def build(self, kind: str, source: str, grammar: str) -> GuidanceProgram:
        eos_ids = self._vocabulary.eos_ids
        open_matcher = partial(llguidance.LLMatcher, self._tokenizer(), grammar, log_level=0, limits=LIMITS)
        program = GuidanceProgram(open_matcher, eos_ids, self._ends, mask_words(self._vocabulary.size))
        matcher = program.matcher
        if matcher.is_error():
            raise BadRequest(complaint(kind, source, matcher.get_error()))
        if not _begins(matcher.deep_copy(), eos_ids):
            raise BadRequest("the grammar cannot be used: no text follows it, or none that ends")
        _try_a_token(matcher.deep_copy(), eos_ids)
        return program

    def _tokenizer(self) -> llguidance.LLTokenizer:
        with self._lock:
            if not self._opened:
                self._opened.append(open_tokenizer(self._vocabulary))
            return self._opened[0]


def _begins(matcher: llguidance.LLMatcher, eos_ids: tuple[int, ...]) -> bool:
    """Whether an answer can begin, and go on where it has no choice: not where rules lead into each other for ever.

    Raises BadRequest where it would have to go on behind an end token.
    """
    matcher.compute_bitmask()
    forced = [] if matcher.is_error() or matcher.is_stopped() else matcher.compute_ff_tokens()
    if not set(eos_ids).isdisjoint(forced[:-1]):
        raise BadRequest(MORE_BEHIND)
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
        raise BadRequest(f"the grammar is beyond what can be followed{_because(matcher)}; {LESS}")
    if not matcher.rollback(1):
        raise BadRequest("the grammar cannot be used: max_tokens and stop of a rule are not supported")


def complaint(kind: str, source: str, said: str) -> str:
    """Why a source cannot be used, for whoever wrote it. said: by the library."""
    if kind == "json_schema":
        schema, said = read_schema(source), _without_stages(said)
        return explain(schema, said) or _told_with_its_place(schema, said)
    return f"the {_NAMES[kind]} cannot be used: {one_line(said)}"


def _told_with_its_place(schema: Schema, said: str) -> str:
    pointer, keyword = blame(schema, _said_of) if _said_of(schema) else ("#", "")
    return f"JSON schema: {repr(keyword) if keyword else 'what is'} at {pointer} cannot be used: {said}"


def _said_of(schema: Schema) -> str:
    """What the library says of a schema, by itself; "" where nothing is wrong."""
    return _without_stages(llguidance.LLMatcher.validate_grammar(schema_grammar(schema), limits=LIMITS))


def _without_stages(said: str) -> str:
    """What the library says, without the references on its way there."""
    return one_line(re.sub(r"\s+while processing json-schema:\S*", "", said))


_NAMES = {
    "json_object": "JSON grammar",
    "regex": "regular expression",
    "choice": "list of choices",
    "lark": "grammar",
    "gbnf": "grammar",
}


def _because(matcher: llguidance.LLMatcher) -> str:
    """The first line of what the library says, for people; "" where it says nothing."""
    said = one_line(matcher.get_error().replace("<non-verbose/>", ""))
    return f": {said}" if said else ""
