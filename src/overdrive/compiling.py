"""Requests that wait for their grammar: held back from admission until it is compiled, ended where it cannot be.

Knows requests and programs; never how a grammar is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from weakref import WeakSet

from overdrive.errors import BadRequest
from overdrive.grammar.base import GrammarAwaited, Vocabulary, without_tokenizer
from overdrive.grammar.constraint import Constrained
from overdrive.grammar.guidance import GuidanceCompiler
from overdrive.grammar.lead import Lead
from overdrive.grammar.programs import Programs, Ticket, wait_for
from overdrive.grammar.vetting import Vetting
from overdrive.request import Request
from overdrive.text import Tokenizer


class Compiling:
    """Owns the programs. Used by the engine's thread."""

    def __init__(self, programs: Programs, eos_ids: Sequence[int], on_close: Callable[[], None] = lambda: None) -> None:
        """on_close: ends whoever tries grammars."""
        self._on_close = on_close
        self._programs = programs
        self._eos_ids = tuple(eos_ids)
        self._waiting: dict[Request, Ticket] = {}
        self._made: WeakSet[Constrained] = WeakSet()

    @property
    def matchers(self) -> int:
        """Constraints that were made and still exist, whoever holds them."""
        return len(self._made)

    def hold(self, request: Request) -> None:
        """Have the request's grammar compiled; it is held until `release` lets it go."""
        grammar = request.params.grammar
        if grammar is not None:
            request.held = True
            self._waiting[request] = self._programs.ask(grammar.kind, grammar.source)

    def hold_again(self, request: Request) -> None:
        """The same for one whose program is compiled anew, since answers have used it up. It was compiled before, so
        there is no limit to the time that it may take to come to it."""
        if request.constraint.awaited is not None:
            request.held = True
            self._waiting[request] = Ticket(request.constraint.awaited, inf)

    def release(self) -> list[tuple[Request, BadRequest]]:
        """Let those go whose grammar is there. Returns those that must end, and why."""
        refused = []
        for request, ticket in list(self._waiting.items()):
            if request.finish is not None:
                del self._waiting[request]
            elif ticket.ready:
                del self._waiting[request]
                try:
                    self._let_go(request, ticket)
                except GrammarAwaited as wait:  # others have used it up since it was asked for
                    self._waiting[request] = Ticket(wait.ready, inf)
                except BadRequest as error:
                    # The program's error is kept with it, and its traceback would keep this frame and its request.
                    refused.append((request, error.with_traceback(None)))
        return refused

    def _let_go(self, request: Request, ticket: Ticket) -> None:
        program, grammar = ticket.program(), request.params.grammar
        assert grammar is not None
        if request.constraint.awaited is None:
            request.constraint = made = Constrained(program, self._eos_ids, Lead(grammar.after, grammar.trigger))
            self._made.add(made)
        else:
            request.constraint.resume()
        request.held = False

    def wait(self, seconds: float) -> None:
        """Nothing else is to be done: returns when a grammar may be there, after `seconds` at the latest."""
        wait_for(self._waiting.values(), seconds)

    def close(self) -> None:
        """Compile nothing more."""
        self._programs.close()
        self._on_close()


def open_compiling(tokenizer: Tokenizer, size: int, eos_ids: tuple[int, ...]) -> Compiling:
    """For the tokens of a model, see `vocabulary_of`."""
    vocabulary = vocabulary_of(tokenizer, size, eos_ids)
    vetting = Vetting(partial(GuidanceCompiler, without_tokenizer(vocabulary)))
    return Compiling(Programs(GuidanceCompiler(vocabulary), vetting), eos_ids, vetting.close)


def vocabulary_of(tokenizer: Tokenizer, size: int, eos_ids: tuple[int, ...]) -> Vocabulary:
    """size: of a model's own vocabulary. eos_ids: that end its answers."""
    table = tokenizer.table
    encode = partial(tokenizer.encode, add_special=False)
    return Vocabulary(size, table.pieces, table.special.union(eos_ids), eos_ids, encode, table.strips_space)
