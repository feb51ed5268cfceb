"""One answer as it grows: committed tokens in, text and accounts out. Streams and whole answers read the same object.

Knows tokens and text; must never know HTTP or the form of an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from overdrive.draft_report import DraftTally
from overdrive.serve.faults import ServerFault
from overdrive.serve.replies import CompletionDetails, FinishWord, PromptDetails, PromptToken, TextPiece, Usage
from overdrive.text import CommittedText, Tokenizer
from overdrive.text.pieces import TokenTable
from overdrive.tools.reasoning import ReasoningTokens
from overdrive.types import Finish, FinishReason
from overdrive.wire import Logprobs, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """How a request wants its text. `report` asks for the text token by token.

    stops, stop_ids: stop strings and tokens that the request itself brought. table: tokens as text, where other than
    the tokenizer's. grammar_field: the request's field that asks for structure, "" for free text. new_reasoning: counts
    the reasoning of one answer, for models that have it.
    """

    stops: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    include_stop: bool = False
    report: bool = False
    silent: bool = False
    """Show nothing of what is generated: the request only scores its prompt."""
    table: TokenTable | None = None
    grammar_field: str = ""
    new_reasoning: Callable[[], ReasoningTokens] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one message of the engine adds to an answer.

    logprobs covers `ids`. finish is the word for clients, "" before the end.
    """

    text: str
    ids: list[int]
    pieces: list[TextPiece]
    logprobs: Logprobs | None
    finish: FinishWord | None
    stop_reason: int | str | None = None

    @property
    def empty(self) -> bool:
        """Nothing a client would see: a stretch of prompt, or text held back."""
        return not self.text and not self.ids and self.finish is None


@dataclass(slots=True)
class Counts:
    """Of one answer: tokens committed, drafts among them, drafts verified, prompt tokens found in the cache.

    drafts: its rounds.
    """

    completed: int = 0
    accepted: int = 0
    offered: int = 0
    cached: int = 0
    drafts: DraftTally = field(default_factory=DraftTally)


@dataclass(slots=True)
class Answer:
    """Answer `index` of a request, to one prompt of `prompt` tokens."""

    index: int
    prompt: list[int]
    tokenizer: Tokenizer
    rules: TextRules
    counts: Counts = field(default_factory=Counts)
    prompt_scores: list[Logprobs] = field(default_factory=list)
    _text: CommittedText = field(init=False)
    _reasoning: ReasoningTokens | None = field(init=False)

    def __post_init__(self) -> None:
        rules = self.rules
        self._text = CommittedText(self.tokenizer, rules.stops, rules.include_stop, rules.table)
        self._reasoning = rules.new_reasoning() if rules.new_reasoning else None

    @property
    def reasoning_tokens(self) -> int | None:
        """How many of its tokens were reasoning, None for models without."""
        return self._reasoning.count if self._reasoning else None

    def take(self, item: Tokens) -> Delta:
        """The engine has committed tokens. Raises ServerFault when it gave the answer up."""
        if item.prompt_logprobs is not None:
            self.prompt_scores.append(item.prompt_logprobs)
        self.counts.cached = max(self.counts.cached, item.cached_tokens)
        if item.finish is FinishReason.ERROR:
            field = self.rules.grammar_field if item.status == 400 else ""
            raise ServerFault(item.error or "the engine gave the request up", item.status, field, item.code)
        if item.finish is FinishReason.ABORT:
            raise ServerFault("the server stopped before the answer was complete", status=503)
        finish: FinishWord | None = None if item.finish is None else item.finish.value  # type: ignore[assignment]
        if self.rules.silent:
            return Delta("", [], [], None, finish and "length")
        if self._reasoning is not None:
            self._reasoning.take(item.ids)
        self.counts.completed += len(item.ids)
        self.counts.accepted += item.accepted
        self.counts.offered += item.offered
        self.counts.drafts.add(item.source, item.offered, item.accepted, len(item.ids))
        pieces = self._pieces(item)
        text = "".join(piece.text for piece in pieces)
        shown = [piece for piece in pieces if piece.text] if self.rules.report else []
        return Delta(text, item.ids, shown, item.logprobs, finish, self._stop_reason(item))

    def _pieces(self, item: Tokens) -> list[TextPiece]:
        """The text that `item` makes certain; token by token when the request wants to see who wrote what."""
        finish = None if item.finish is None else Finish(item.finish, item.stop_string, item.stop_token)
        runs = [[token] for token in item.ids] if self.rules.report and item.ids else [item.ids]
        ends = [None] * (len(runs) - 1) + [finish]
        texts = map(self._text.take, runs, ends)
        return [TextPiece(text, place < item.accepted) for place, text in enumerate(texts)]

    def _stop_reason(self, item: Tokens) -> int | str | None:
        if item.stop_string >= 0:
            return self.rules.stops[item.stop_string]
        return item.stop_token if item.stop_token in self.rules.stop_ids else None

    def scored_prompt(self) -> list[tuple[int, float, int, list[int], list[float]]]:
        """Prompt tokens from position 1 on: id, log-probability, rank, and the likeliest ids with theirs."""
        scores = [row for part in self.prompt_scores for row in zip(*_columns(part), strict=True)]
        return [(token, *row) for token, row in zip(self.prompt[1:], scores, strict=False)]


def _columns(scores: Logprobs) -> tuple[list[float], list[int], list[list[int]], list[list[float]]]:
    return scores.chosen, scores.ranks, scores.top_ids, scores.top


def prompt_logprobs(answer: Answer) -> list[dict[str, PromptToken] | None]:
    """By prompt position, candidates by token id: the likeliest ones and the token that stands there; None at first."""
    positions: list[dict[str, PromptToken] | None] = [None]
    for token, logprob, rank, top_ids, top in answer.scored_prompt():
        likeliest = enumerate(zip(top_ids, top, strict=True), start=1)
        found = {str(i): _prompt_token(answer.tokenizer, i, p, place) for place, (i, p) in likeliest}
        found[str(token)] = _prompt_token(answer.tokenizer, token, logprob, rank)
        positions.append(found)
    return positions


def _prompt_token(tokenizer: Tokenizer, token: int, logprob: float, rank: int) -> PromptToken:
    return PromptToken(logprob, rank, token_text(tokenizer, token))


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """One token alone, as text: part of a character becomes U+FFFD (its `bytes` are given beside it)."""
    return tokenizer.bytes_of(token).decode("utf-8", errors="replace")


def usage(answers: Sequence[Answer], n: int, sources: Sequence[str]) -> Usage:
    """Sums over a request's answers; each prompt has n of them, one after the other, and is counted once.

    sources: names of those who write drafts, by index.
    """
    firsts = answers[::n]
    prompt = sum(len(answer.prompt) for answer in firsts)
    completed = sum(answer.counts.completed for answer in answers)
    accepted = sum(answer.counts.accepted for answer in answers)
    offered = sum(answer.counts.offered for answer in answers)
    cached = PromptDetails(sum(answer.counts.cached for answer in firsts))
    details = CompletionDetails(accepted, max(0, offered - accepted))
    reasoned = [answer.reasoning_tokens for answer in answers if answer.reasoning_tokens is not None]
    if reasoned:
        details.reasoning_tokens = sum(reasoned)
    drafts = DraftTally.report([answer.counts.drafts for answer in answers], sources)
    return Usage(prompt, completed, prompt + completed, cached, details, drafts)
