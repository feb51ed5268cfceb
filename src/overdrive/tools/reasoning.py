"""Tells a model's reasoning from its answer while both arrive. The same split however the text is cut."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.tools.formats import Thinking
from overdrive.tools.marks import SPACE, settled


class ReasoningTokens:
    """Counts the tokens of one answer that belong to its reasoning, markers included.

    open_ids, close_ids: the markers as tokens; without them nothing is counted. inside: as for `ReasoningReader`.
    """

    def __init__(self, open_ids: Sequence[int], close_ids: Sequence[int], inside: bool) -> None:
        self._open, self._close = list(open_ids), list(close_ids)
        self._beginning: list[int] = []  # what may still turn out to be the opening marker
        self._newest: list[int] = []  # as many as the closing marker has
        self._inside = inside and bool(close_ids)
        self._over = not close_ids
        self.count = 0

    def take(self, ids: Sequence[int]) -> None:
        """The answer's next tokens."""
        for token in ids:
            if self._over:
                return
            self._newest = [*self._newest, token][-len(self._close) :]
            if self._inside:
                self.count += 1
                self._over = self._newest == self._close
            else:
                self._begin(token)

    def _begin(self, token: int) -> None:
        self._beginning.append(token)
        if self._beginning == self._open:
            self._inside = True
            self.count = len(self._open)
        elif self._beginning != self._open[: len(self._beginning)]:
            self._over = True


class ReasoningReader:
    """Splits one answer's text; white space at either end of the reasoning, and behind it, belongs to neither part.

    inside: the prompt has opened the reasoning already, so that the answer begins within it.
    """

    def __init__(self, marks: Thinking, inside: bool) -> None:
        self._marks = marks
        self._buffer = ""
        self._state = self._lead if inside else self._start
        self._reasoning = ""
        self._content = ""

    def push(self, text: str) -> tuple[str, str]:
        """Reasoning and answer that `text` makes certain."""
        self._buffer += text
        while self._state():
            pass
        return self._take()

    def finish(self) -> tuple[str, str]:
        """What was held back, now that nothing follows."""
        if self._state in (self._lead, self._inside):
            self._reasoning += self._buffer.strip(SPACE) if self._state == self._lead else self._buffer.rstrip(SPACE)
        elif self._state in (self._start, self._outside):
            self._content += self._buffer
        self._buffer = ""
        return self._take()

    def _take(self) -> tuple[str, str]:
        parts = self._reasoning, self._content
        self._reasoning = self._content = ""
        return parts

    def _start(self) -> bool:
        """Nothing but white space so far: the model may open its reasoning, or answer at once."""
        seen = self._buffer.lstrip(SPACE)
        if seen.startswith(self._marks.open):
            self._buffer = seen[len(self._marks.open) :]
            self._state = self._lead
            return True
        if self._marks.open.startswith(seen):  # also when nothing was seen
            return False
        self._state = self._outside
        return True

    def _lead(self) -> bool:
        """White space before the reasoning."""
        self._buffer = self._buffer.lstrip(SPACE)
        if not self._buffer:
            return False
        self._state = self._inside
        return True

    def _inside(self) -> bool:
        close = self._marks.close
        place = self._buffer.find(close)
        if place >= 0:
            self._reasoning += self._buffer[:place].rstrip(SPACE)
            self._buffer = self._buffer[place + len(close) :]
            self._state = self._behind
            return True
        sure = settled(self._buffer, close)
        self._reasoning += self._buffer[:sure]
        self._buffer = self._buffer[sure:]
        return False

    def _behind(self) -> bool:
        """White space between reasoning and answer."""
        self._buffer = self._buffer.lstrip(SPACE)
        if not self._buffer:
            return False
        self._state = self._outside
        return True

    def _outside(self) -> bool:
        self._content += self._buffer
        self._buffer = ""
        return False
