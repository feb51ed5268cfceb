"""Tells a model's reasoning from its answer while both arrive. The same split however the text is cut."""

from __future__ import annotations

from overdrive.tools.formats import Thinking
from overdrive.tools.marks import SPACE, settled


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
