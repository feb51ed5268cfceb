"""Token ids to text while they arrive.

`tokenizers.decoders.DecodeStream` is not used: it decodes a window again per call and holds text back for as long as
it ends in U+FFFD, so a run of invalid bytes never comes out. Bytes and an incremental UTF-8 decoder cost O(new bytes)
and agree with `Tokenizer.decode` for any ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from overdrive.text.pieces import TokenTable
from overdrive.text.tokenizer import Tokenizer

_Utf8 = codecs.getincrementaldecoder("utf-8")


class Detokeniser:
    """The text of one answer: `push` returns what the new ids have made certain, `finish` the rest.

    All pushes and the finish together equal `tokenizer.decode(all ids, continues=continues)`, however they are cut.
    """

    def __init__(self, tokenizer: Tokenizer, continues: bool = True) -> None:
        self._table: TokenTable = tokenizer.table
        self._utf8 = _Utf8(errors="replace")
        self._at_start = tokenizer.table.strips_space and not continues

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` add; a character whose last byte has not arrived waits."""
        data = self._table.join(ids)
        if self._at_start and data:
            data = data.removeprefix(b" ")
            self._at_start = False
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What was waiting: U+FFFD for a character that never became whole, else nothing."""
        return self._utf8.decode(b"", final=True)
