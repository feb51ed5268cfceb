"""The text of an answer with stop strings: what may be shown now, and where it ends.

The server's half of the meeting "stop strings". The engine decides that and where a stop counts (`StopHit`); this side
holds back what may be the beginning of one and cuts by the engine's word, on bytes, so both agree by construction.

`tokenizers.decoders.DecodeStream` is not used: it decodes a window again per call and holds text back for as long as
it ends in U+FFFD, so a run of invalid bytes never comes out. Bytes and an incremental UTF-8 decoder cost O(new bytes)
and agree with `Tokenizer.decode` for any ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from overdrive.text.pieces import TokenTable
from overdrive.text.stops import StopAutomaton, StopHit
from overdrive.text.tokenizer import Tokenizer

_Utf8 = codecs.getincrementaldecoder("utf-8")


class AnswerText:
    """Turns one answer's committed tokens into the text its reader gets.

    All pieces together are the same for every way of cutting the tokens into calls: the decoded answer up to the stop
    string (`include_stop`: and including it), as `Tokenizer.decode(..., continues=True)` has it. A character whose last
    byte has not arrived waits.

    stops: as sent to the engine, in the same order. table: tokens as text, where other than the tokenizer's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        table: TokenTable | None = None,
    ) -> None:
        self._table = table or tokenizer.table
        self._automaton = StopAutomaton([stop.encode() for stop in stops])
        self._include_stop = include_stop
        self._state = 0
        self._held = b""
        self._utf8 = _Utf8(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` make certain. They must not hold the token that completed a stop: that is `finish`'s."""
        data = self._table.join(ids)
        if self._automaton.untouched(self._state, data):
            return self._utf8.decode(data)
        for byte in data:
            self._state = self._automaton.step(self._state, byte)
        data = self._held + data
        sure = len(data) - self._automaton.pending(self._state)
        self._held = data[sure:]
        return self._utf8.decode(data[:sure])

    def finish(self, ids: Sequence[int] = (), hit: StopHit | None = None) -> str:
        """The rest of the text, with the answer's last `ids`.

        hit: the engine's word that the last of all ids completed a stop string. An answer that ended by a stop *token*
        is finished without that token.
        """
        data = self._held + self._table.join(ids)
        if hit is not None:
            kept = len(self._automaton.stops[hit.stop]) if self._include_stop else 0
            data = data[: len(data) - hit.back + kept]
        self._held = b""
        return self._utf8.decode(data, final=True)
