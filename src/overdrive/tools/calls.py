"""Reads calls out of an answer while it arrives. All pieces together are the same however the text is cut.

Reads exactly what `grammar.py` lets a model write. What turns out to be no call (an answer that was cut off before the
first name was whole, or that no grammar held) is text.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from overdrive.tools.formats import ToolFormat
from overdrive.tools.marks import SPACE, settled

_ALPHABET = string.ascii_letters + string.digits
_LONGEST_HEAD = 512  # characters between the beginning of a call and its arguments


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What is new of call `index`. id and name come whole, in its first piece; arguments follow as they are written."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, whole. arguments: JSON in a string, as OpenAI has it."""

    id: str
    name: str
    arguments: str


def whole_calls(pieces: Iterable[CallPiece]) -> tuple[ToolCall, ...]:
    """Calls put together from their pieces, which come in order."""
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.id:
            calls.append(ToolCall(piece.id, piece.name, piece.arguments))
        else:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + piece.arguments)
    return tuple(calls)


@dataclass(slots=True)
class Found:
    """What a stretch of an answer was: text, and pieces of calls, each in order."""

    text: str = ""
    calls: list[CallPiece] = field(default_factory=list)


class CallReader:
    """One answer's calls. names: functions that may be called. new_id: of call `index`, from what was written.

    States, each a method that eats from the front of the buffer and says whether it got anywhere:

        text -> opening -> head -> arguments -> end -> between -+-> head (the next call)
                                                                +-> text (behind the last one)
    """

    def __init__(
        self, form: ToolFormat, names: Collection[str], new_id: Callable[[int, str], str] | None = None
    ) -> None:
        self._form = form
        self._names = frozenset(names)
        self._new_id = new_id or _ids(form)
        self._buffer = ""
        self._eaten = ""  # of a beginning that may still turn out to be text
        self._state = self._text if form.trigger else self._opening
        self._object = ObjectEnd()
        self._found = Found()
        self._count = 0

    @property
    def whole(self) -> bool:
        """Whether at least one call was made and none is unfinished."""
        return self._count > 0 and self._state in (self._between, self._text)

    def push(self, text: str) -> Found:
        """What `text` makes certain."""
        self._buffer += text
        while self._state():
            pass
        return self._take()

    def finish(self) -> Found:
        """What was held back, now that nothing follows."""
        if self._state in (self._text, self._opening, self._head):
            self._found.text += self._eaten + self._buffer
        self._buffer = self._eaten = ""
        return self._take()

    def _take(self) -> Found:
        found, self._found = self._found, Found()
        return found

    # -- states --------------------------------------------------------------------------------------------------

    def _text(self) -> bool:
        """Free text up to a trigger. White space before one is dropped, so it waits for what follows it."""
        trigger = self._form.trigger
        place = self._buffer.find(trigger) if trigger else -1
        if place >= 0:
            text = self._buffer[:place].rstrip(SPACE)
            self._found.text += text
            self._eaten = self._buffer[len(text) : place + len(trigger)]
            self._buffer = self._buffer[place + len(trigger) :]
            self._state = self._opening
            return True
        sure = settled(self._buffer, trigger)
        self._found.text += self._buffer[:sure]
        self._buffer = self._buffer[sure:]
        return False

    def _opening(self) -> bool:
        opening = self._form.opening
        if self._expect(opening, self._head):
            self._eaten += opening
            return True
        return not opening.startswith(self._buffer) and self._give_up()

    def _head(self) -> bool:
        """The name, up to the arguments."""
        middle = self._form.middle
        place = self._buffer.find(middle)
        if place < 0 and len(self._buffer) < _LONGEST_HEAD + len(middle):
            return False
        if not 0 <= place <= _LONGEST_HEAD:
            return self._give_up()
        written = self._buffer[:place]
        name = written.rpartition(self._form.number)[0] if self._form.number else written
        if name not in self._names:
            return self._give_up()
        self._buffer = self._buffer[place + len(middle) :]
        self._eaten = ""
        self._found.calls.append(CallPiece(self._count, self._new_id(self._count, written), name))
        self._object = ObjectEnd()
        self._state = self._arguments
        return True

    def _arguments(self) -> bool:
        """The object's text as it comes."""
        taken = self._object.push(self._buffer)
        if taken:
            self._found.calls.append(CallPiece(self._count, arguments=self._buffer[:taken]))
        self._buffer = self._buffer[taken:]
        if not self._object.closed:
            return False
        self._state = self._end
        return True

    def _end(self) -> bool:
        if self._expect(self._form.end, self._between):
            self._count += 1
            return True
        if self._form.end.startswith(self._buffer):
            return False
        self._count += 1  # its arguments are whole, whatever follows them
        self._state = self._text
        return True

    def _between(self) -> bool:
        """Another call, or the end of them."""
        form = self._form
        if self._expect(form.between + form.call, self._head):
            self._eaten = form.between + form.call
            return True
        if form.finish and self._expect(form.finish, self._text):
            return True
        waiting = any(part.startswith(self._buffer) for part in (form.between + form.call, form.finish) if part)
        if waiting or not self._buffer:
            return False
        self._state = self._text
        return True

    # -- steps ---------------------------------------------------------------------------------------------------

    def _expect(self, part: str, then: Callable[[], bool]) -> bool:
        """Goes on when the buffer begins with `part`."""
        if not self._buffer.startswith(part):
            return False
        self._buffer = self._buffer[len(part) :]
        self._state = then
        return True

    def _give_up(self) -> bool:
        """What looked like a call is text, and so is what follows, up to the next trigger."""
        self._found.text += self._eaten
        self._eaten = ""
        self._state = self._text
        return True


class ObjectEnd:
    """Finds where a JSON object that arrives in pieces ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self.closed = False

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the object."""
        for place, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._quoted = char != '"'
                self._escaped = char == "\\"
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.closed = True
                    return place + 1
        return len(text)


def _ids(form: ToolFormat) -> Callable[[int, str], str]:
    """How calls of this format get their ids."""
    if form.ids == "short":
        return lambda index, written: "".join(secrets.choice(_ALPHABET) for _ in range(9))
    if form.ids == "written":
        prefix = form.call.removeprefix(next((one for one in form.markers if form.call.startswith(one)), ""))
        return lambda index, written: prefix + written
    return lambda index, written: f"call_{secrets.token_hex(12)}"
