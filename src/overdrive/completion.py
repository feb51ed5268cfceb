"""One answer of the LLM class: as it grows, and as its caller gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from overdrive.commit import Delta
from overdrive.draft_report import DraftReport, DraftTally
from overdrive.errors import BadRequest, OverdriveError
from overdrive.text import CommittedText
from overdrive.tools.calls import CallPiece, ToolCall, whole_calls
from overdrive.tools.turn import TurnReader
from overdrive.types import Finish, FinishReason, SamplingParams, TopLogprobs


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token under the raw distribution of the model: its log-probability, its rank (1 is the likeliest), and those
    of the likeliest tokens by id, best first, as many as were asked for."""

    token_id: int
    logprob: float
    rank: int
    top: dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An answer that is complete.

    text: without special tokens and without what ended it; of a chat's turn what is said to the user, beside its
    `reasoning` and its `tool_calls`. token_ids: what the model drew, an end token included.
    finish_reason: "stop" for an end token or a stop string, "length" for max_tokens or the end of the context,
    "tool_calls" where the answer ended of itself with calls.
    prompt_tokens: of the prompt, `cached_tokens` of them found in the prefix cache.
    accepted_drafts: how many of `token_ids` were drafts that the model agreed with.
    drafts: rounds, tokens per round, and drafts by who wrote them and by position.
    logprobs: one entry per id, where asked for. prompt_logprobs: the same from the prompt's second token on.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    accepted_drafts: int
    drafts: DraftReport
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(slots=True)
class Answer:
    """An answer under way: `take` is told what the engine commits. sources: names of those who write drafts.

    reader: takes a chat's turn apart; None for text as it is.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    text: CommittedText
    sources: Sequence[str]
    reader: TurnReader | None = None
    finish: Finish | None = None
    ids: list[int] = field(default_factory=list)
    accepted: int = 0
    cached: int = 0
    _drafts: DraftTally = field(default_factory=DraftTally)
    _pieces: list[str] = field(default_factory=list)
    _read: int = 0
    _scores: list[TokenLogprob] = field(default_factory=list)
    _prompt_scores: list[TokenLogprob] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[CallPiece] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        """One settled step's part of this answer."""
        if delta.logprobs is not None:
            self._scores += _entries(delta.tokens, delta.logprobs)
        if delta.prompt_logprobs is not None:
            known = self.prompt[1 + len(self._prompt_scores) :]
            self._prompt_scores += _entries(known, delta.prompt_logprobs)
        self.ids += delta.tokens
        self.accepted += delta.accepted
        self._drafts.add(delta.source, delta.offered, delta.accepted, len(delta.tokens))
        self.cached = max(self.cached, delta.request.cached_tokens)
        self.finish = delta.finish
        text = self.text.take(delta.tokens, delta.finish)
        if self.reader is not None:
            part = self.reader.take(text, last=delta.finish is not None)
            text = part.content
            self._reasoning.append(part.reasoning)
            self._calls += part.calls
        self._pieces.append(text)

    def fresh(self) -> str:
        """Text that has come since the last call. Raises OverdriveError when the engine gave the answer up."""
        self._check()
        text = "".join(self._pieces[self._read :])
        self._read = len(self._pieces)
        return text

    def completion(self) -> Completion:
        """The whole answer, once it has finished. Raises OverdriveError when the engine gave it up."""
        self._check()
        return Completion(
            text="".join(self._pieces),
            token_ids=tuple(self.ids),
            finish_reason=self._finish_reason(),
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached,
            accepted_drafts=self.accepted,
            drafts=DraftTally.report([self._drafts], self.sources),
            logprobs=tuple(self._scores) if self.params.logprobs >= 0 else None,
            prompt_logprobs=tuple(self._prompt_scores) if self.params.prompt_logprobs >= 0 else None,
            reasoning="".join(self._reasoning),
            tool_calls=whole_calls(self._calls),
        )

    def _finish_reason(self) -> str:
        if self.finish is None:
            return ""
        made = self.finish.reason is FinishReason.STOP and self.reader is not None and self.reader.calls_whole
        return "tool_calls" if made else self.finish.reason.value

    def _check(self) -> None:
        if self.finish is not None and self.finish.reason in (FinishReason.ERROR, FinishReason.ABORT):
            message = self.finish.message or "the answer was given up before it was complete"
            raise BadRequest(message) if self.finish.status == 400 else OverdriveError(message)


def _entries(tokens: Sequence[int], scores: TopLogprobs) -> list[TokenLogprob]:
    columns = (scores.chosen, scores.ranks, scores.top_ids, scores.top)
    rows = zip(tokens, *(column.tolist() for column in columns), strict=False)
    return [
        TokenLogprob(token, chosen, rank, dict(zip(ids, top, strict=True))) for token, chosen, rank, ids, top in rows
    ]
