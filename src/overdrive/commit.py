"""Where tokens become an answer: cut at the end, give pages to the prefix cache, let finished requests go.

Usage, log-probabilities, KV length and cache keys all follow from the cut made here. Must never know torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from overdrive.grammar.base import GrammarAwaited, GrammarFault, GrammarLimit
from overdrive.policy.acceptance import DraftCounts, key_of
from overdrive.request import Request, Running
from overdrive.scheduler import Scheduler
from overdrive.types import Finish, FinishReason, Outcome, Row, Step, TopLogprobs


@dataclass(frozen=True, slots=True)
class Delta:
    """What one settled step adds to one answer. `accepted` of `tokens`, from the front, came from drafts.

    offered: drafts verified. source: who wrote them, an index into the drafter's sources.
    prompt_logprobs: for prompt tokens `first_scored ..`, in order, when the request asked for them.
    """

    request: Request
    tokens: Sequence[int]
    accepted: int
    offered: int
    source: int
    finish: Finish | None
    logprobs: TopLogprobs | None = None
    prompt_logprobs: TopLogprobs | None = None


class Committer:
    """Settles arrived steps. The only writer of a request's output."""

    def __init__(
        self, scheduler: Scheduler, counts: DraftCounts, meter: Callable[[Step, Outcome], None] = lambda *_: None
    ) -> None:
        """meter: told of every settled step."""
        self._scheduler = scheduler
        self._counts = counts
        self._meter = meter
        self.rounds = 0
        self.prefilled_tokens = 0
        self.generated_tokens = 0
        self.finished: Counter[FinishReason] = Counter()
        self._parted: list[Request] = []

    def settle(self, step: Step, outcome: Outcome) -> list[Delta]:
        """Take a step's results into its requests. Rows of requests that have finished meanwhile are skipped."""
        deltas = []
        self._meter(step, outcome)
        counts, offered, sources = outcome.counts.tolist(), outcome.offered.tolist(), outcome.sources.tolist()
        tokens = outcome.tokens.tolist()
        for index, (row, running) in enumerate(zip(step.rows, self._scheduler.land(step), strict=True)):
            if running.request.finish is not None:
                continue
            if counts[index]:
                self.rounds += 1
                if row.drafts:
                    params = running.request.params
                    key = key_of(params.temperature > 0, params.grammar is not None)
                    self._counts.add(sources[index], key, offered[index], counts[index] - 1)
            taken = tokens[index][: counts[index]]
            delta = self._settle_row(row, running, taken, offered[index], sources[index], index, outcome)
            self._donate(running)
            if delta.finish is not None:
                self._let_go(running.request, delta.finish)
            elif running.leaving and not running.launched:
                self._scheduler.evict(running)
                if running.request.constraint.awaited:
                    self._parted.append(running.request)
            if delta.tokens or delta.finish or delta.prompt_logprobs is not None:
                deltas.append(delta)
        return deltas

    def _settle_row(
        self,
        row: Row,
        running: Running,
        tokens: list[int],
        offered: int,
        source: int,
        index: int,
        outcome: Outcome,
    ) -> Delta:
        request = running.request
        if not row.emits or running.stored < running.target:
            running.stored += row.known
            self.prefilled_tokens += row.known
        kept = self._take(request, tokens)
        running.leaving = running.leaving or request.constraint.awaited is not None
        accepted = min(len(tokens) - 1, len(kept)) if tokens else 0
        request.drafted += max(accepted, 0)
        request.offered += offered
        self.generated_tokens += len(kept)
        scores = outcome.prompt_logprobs.get(index)
        if scores is not None:
            scores = self._unseen_scores(request, running.stored - row.known, scores)
        chosen = outcome.logprobs.get(index)
        if chosen is not None and len(kept) < len(tokens):
            chosen = _slice(chosen, 0, len(kept))
        return Delta(request, kept, accepted, offered, source, request.finish, chosen, scores)

    @staticmethod
    def _take(request: Request, tokens: list[int]) -> list[int]:
        """Append tokens up to and including the one that ends the answer; sets `finish` there.

        A token that the grammar refuses is a fault of the server's, a grammar that cannot be followed one of its
        author's: either ends the request, and the token is not part of the answer. Nor are those for which a grammar
        is awaited: they will be drawn again.
        """
        params = request.params
        for taken, token in enumerate(tokens, start=1):
            try:
                request.constraint.accept(token)
            except GrammarAwaited:
                return tokens[: taken - 1]
            except GrammarFault as fault:
                status = 400 if isinstance(fault, GrammarLimit) else 500
                request.finish = Finish(FinishReason.ERROR, message=str(fault), status=status)
                return tokens[: taken - 1]
            request.tokens.append(token)
            matched = request.stops.push(token)
            enough = request.output_len >= params.min_tokens
            if token in params.stop_token_ids or request.constraint.ended:
                request.finish = Finish(FinishReason.STOP, stop_token=token)
            elif matched is not None and enough:
                request.finish = Finish(FinishReason.STOP, stop_string=matched.stop)
            elif request.output_len >= params.max_tokens:
                request.finish = Finish(FinishReason.LENGTH)
            if request.finish is not None:
                return tokens[:taken]
        return tokens

    @staticmethod
    def _unseen_scores(request: Request, first: int, scores: TopLogprobs) -> TopLogprobs | None:
        """Scores of prompt positions not given out before: a preempted request computes its prompt again.

        `scores` begin with the token at position first + 1.
        """
        end = min(first + 1 + len(scores.chosen), len(request.prompt))
        skip = max(request.scored, first + 1) - (first + 1)
        request.scored = max(request.scored, end)
        kept = end - first - 1 - skip
        return _slice(scores, skip, skip + kept) if kept > 0 else None

    def _donate(self, running: Running) -> None:
        """Name the pages that are full of committed tokens whose KV is stored.

        The newest committed token has no KV yet, and a finished request's drafts past the cut never enter a key.
        """
        cache = self._scheduler.cache
        if cache is None:
            return
        tokens = running.request.tokens
        stored = running.stored if running.stored < running.target else len(tokens) - 1
        full = stored // cache.page_size
        if full > running.donated:
            for index in cache.donate(tokens, running.pages, running.donated, full):
                running.exchange(index)
            running.donated = full

    def take_parted(self) -> list[Request]:
        """Requests that went back to the queue since the last call, and cannot go on before what they await."""
        parted, self._parted = self._parted, []
        return parted

    def abort(self, request: Request, finish: Finish) -> Delta:
        """End a request that has not finished, whatever it is doing."""
        request.finish = finish
        self._let_go(request, finish)
        return Delta(request, [], 0, 0, 0, finish)

    def _let_go(self, request: Request, finish: Finish) -> None:
        self.finished[finish.reason] += 1
        self._scheduler.remove(request)


def _slice(scores: TopLogprobs, start: int, stop: int) -> TopLogprobs:
    pick = np.s_[start:stop]
    return TopLogprobs(scores.chosen[pick], scores.ranks[pick], scores.top_ids[pick], scores.top[pick])
