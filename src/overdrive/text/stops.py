"""Stop strings, as bytes, across token boundaries.

The engine's half of the meeting "stop strings": no text, no tokenizer, no torch. `StopMatcher` is fed committed tokens
and reports the token that completes a stop; `answer.py` cuts the text by the same `StopHit` in the server process.
The automaton is Aho and Corasick's (Efficient string matching, CACM 1975), with one dictionary per state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string that a token completed.

        bytes of the answer ... [first byte of the match ... last][rest of the token]
                                |<------------- back ---------------------------->|

    stop: index into the request's stop strings. back: bytes from the match's first one to the end of that token.
    """

    stop: int
    back: int


class StopAutomaton:
    """Which stop strings end where, in one pass over the bytes. State 0 is "no stop has begun".

    Of all matches the one that ends first counts, and of those that end together the longest: so the cut depends on
    the bytes alone, never on how they fell into tokens.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self.stops = tuple(stops)
        self._starts = frozenset(stop[0] for stop in self.stops)
        self._next: list[dict[int, int]] = [{}]
        self._depth = [0]
        self._found = [-1]  # longest stop that ends in this state
        self._fail = [0]
        for index, stop in enumerate(self.stops):
            self._insert(index, stop)
        self._link()

    def _insert(self, index: int, stop: bytes) -> None:
        state = 0
        for byte in stop:
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(-1)
                self._fail.append(0)
            state = self._next[state][byte]
        if self._found[state] < 0:
            self._found[state] = index

    def _link(self) -> None:
        """Breadth first, so that the state a failure falls to is finished before it is copied from."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            if self._found[state] < 0:
                self._found[state] = self._found[self._fail[state]]
            for byte, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], byte)
                queue.append(child)

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte."""
        while byte not in self._next[state]:
            if state == 0:
                return 0
            state = self._fail[state]
        return self._next[state][byte]

    def untouched(self, state: int, data: bytes) -> bool:
        """Whether `data` leaves state 0 nowhere: the usual case, worth knowing before a loop over bytes."""
        return state == 0 and self._starts.isdisjoint(data)

    def found(self, state: int) -> int:
        """Index of the longest stop that ends in `state`, or -1."""
        return self._found[state]

    def pending(self, state: int) -> int:
        """How many of the last bytes may be the beginning of a stop that has not ended."""
        while not self._next[state] and state:
            state = self._fail[state]
        return self._depth[state]


class StopMatcher:
    """One request's stop strings, advanced by its committed tokens only; there is nothing to roll back.

    token_bytes: what each id adds to the text (`Tokenizer.token_bytes`); ids beyond it add nothing.
    """

    def __init__(self, stops: Sequence[bytes], token_bytes: Sequence[bytes]) -> None:
        self._automaton = StopAutomaton(stops)
        self._token_bytes = token_bytes
        self._state = 0

    def push(self, token: int) -> StopHit | None:
        """Take one token: the stop it completes, if any.

        The whole token is consumed either way, so a caller for whom stops do not count yet (`min_tokens`) goes on
        with the next token.
        """
        data = self._token_bytes[token] if 0 <= token < len(self._token_bytes) else b""
        if self._automaton.untouched(self._state, data):
            return None
        step, found, state = self._automaton.step, self._automaton.found, self._state
        hit = None
        for position, byte in enumerate(data):
            state = step(state, byte)
            if hit is None and found(state) >= 0:
                stop = found(state)
                hit = StopHit(stop, len(data) - position - 1 + len(self._automaton.stops[stop]))
        self._state = state
        return hit
