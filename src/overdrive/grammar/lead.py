"""What may come before a grammar: free text up to a run of tokens. Knows token ids; never how a grammar is written."""

from __future__ import annotations

from collections.abc import Sequence


class Marker:
    """Finds the first occurrence of a run of tokens, one token at a time (Knuth, Morris and Pratt 1977).

    A state is how many of the run's tokens the newest ones are; `len(run)` is found.
    """

    def __init__(self, run: Sequence[int]) -> None:
        self.run = tuple(run)
        self._borders = [0] * (len(self.run) + 1)  # longest proper prefix of run[:n] that is its suffix
        for n in range(1, len(self.run)):
            self._borders[n + 1] = self.next(self._borders[n], self.run[n])

    def next(self, state: int, token: int) -> int:
        """The state behind one more token; `state` is not that of a found run."""
        while state and token != self.run[state]:
            state = self._borders[state]
        return state + (token == self.run[state])


class Lead:
    """What comes before a grammar, as `GrammarSpec` says: all is free up to `after`, then up to `trigger` or the end.

    A state is one number:

        0 .. A-1  `after` is looked for | A .. A+T-1  `trigger` is looked for | A+T  the grammar holds
    """

    def __init__(self, after: Sequence[int] = (), trigger: Sequence[int] = ()) -> None:
        self._after, self._trigger = Marker(after), Marker(trigger)
        self._first = len(self._after.run)
        self.end = self._first + len(self._trigger.run)

    def next(self, state: int, token: int) -> int:
        """The state behind one more token; `state` is not the end."""
        if state < self._first:
            return self._after.next(state, token)
        return self._first + self._trigger.next(state - self._first, token)

    def may_end(self, state: int) -> bool:
        """Whether the answer may end here, before the grammar has begun."""
        return self._first <= state < self.end


AT_ONCE = Lead()
