"""From committed tokens, and the engine's word of how they end, to the text of an answer: for all its readers."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.text.answer import AnswerText
from overdrive.text.pieces import TokenTable
from overdrive.text.stops import StopHit, StopMatcher
from overdrive.text.tokenizer import Tokenizer
from overdrive.types import Finish


class CommittedText:
    """The text of one answer, stop strings and stop tokens cut off (`include_stop`: kept).

    All pieces together are the same for every way of cutting the tokens into calls.

    stops: as sent to the engine, in the same order.
    table: tokens as text, where other than the tokenizer's, as for reading tool calls. A stop string that such a table
    tears apart ends the answer without being cut off.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        table: TokenTable | None = None,
    ) -> None:
        visible = (table or tokenizer.table).visible
        self._text = AnswerText(tokenizer, stops, include_stop, table)
        self._matcher = StopMatcher([stop.encode() for stop in stops], visible) if stops else None
        self._include_stop = include_stop

    def take(self, ids: Sequence[int], finish: Finish | None = None) -> str:
        """Text that the next tokens make certain; with `finish`, which tells how they end the answer, all the rest."""
        hit = self._watch(ids)
        if finish is None:
            return self._text.push(ids)
        if finish.stop_token >= 0 and not self._include_stop:
            ids = ids[:-1]
        return self._text.finish(ids, hit if finish.stop_string >= 0 else None)

    def _watch(self, ids: Sequence[int]) -> StopHit | None:
        """What the last of `ids` completes: the engine says that it counts, the matcher where it begins."""
        hit = None
        if self._matcher is not None:
            for token in ids:
                hit = self._matcher.push(token)
        return hit
