"""/v1/completions: text or token ids in, their continuation out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from fastapi import Request, Response
from msgspec import UNSET

from overdrive.parameters import Wanted, check_ids, sampling_params, siblings
from overdrive.serve.answer import Answer, Delta, prompt_logprobs, token_text
from overdrive.serve.chat import all_ids, all_pieces, text_rules
from overdrive.serve.params import check_completion, most_drafts
from overdrive.serve.protocol import CompletionRequest
from overdrive.serve.record import RequestRecord, record_of
from overdrive.serve.replies import Completion, TextChoice, TextLogprobs, Usage
from overdrive.serve.service import Service, off_loop
from overdrive.serve.stream import Exchange, json_response, stream_response, whole_answers
from overdrive.structured import Structure, structure_of
from overdrive.text import Tokenizer
from overdrive.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its ids, and its text as `echo` repeats it."""

    ids: list[int]
    text: str


async def text_completion(http: Request, request: CompletionRequest, service: Service) -> Response:
    """Answers one completions request, streamed or whole. Raises BadRequest before anything is sent."""
    record = record_of(http)
    check_completion(request)
    service.check_model(request.model)
    structure, prompts = await off_loop(lambda: (structure_of(request), read_prompts(request, service)))
    request_id = f"cmpl-{uuid.uuid4().hex}"
    exchange = _submit(request, service, prompts, structure, request_id, record)
    form = CompletionForm(request_id, int(time.time()), service.name, request, service.tokenizer, prompts)
    if request.stream:
        options = request.stream_options
        return await stream_response(http, exchange, form, bool(options and options.include_usage))
    deltas = await whole_answers(http, exchange)
    return json_response(form.whole(exchange, deltas))


def read_prompts(request: CompletionRequest, service: Service) -> list[Prompt]:
    """The request's prompts, of any of the four forms. Raises BadRequest for ids outside the vocabulary."""
    given = request.prompt
    if isinstance(given, str):
        items: list[str] | list[list[int]] = [given]
    elif given and isinstance(given[0], int):
        items = [cast(list[int], given)]
    else:
        items = cast("list[str] | list[list[int]]", given)
    return [_read_prompt(item, request, service) for item in items]


def _read_prompt(item: str | list[int], request: CompletionRequest, service: Service) -> Prompt:
    if isinstance(item, str):
        return Prompt(service.tokenizer.encode(item, add_special=request.add_special_tokens is not False), item)
    check_ids(item, service.info.vocab_size, "prompt")
    return Prompt(item, service.tokenizer.decode(item) if request.echo else "")


def _submit(
    request: CompletionRequest,
    service: Service,
    prompts: list[Prompt],
    structure: Structure | None,
    request_id: str,
    record: RequestRecord,
) -> Exchange:
    n = request.n or 1
    logprobs = -1 if request.logprobs is None else request.logprobs
    params: list[SamplingParams] = []
    for prompt in prompts:
        wanted = Wanted(
            prompt=prompt.ids,
            prompt_param="prompt",
            max_tokens=request.max_tokens,
            logprobs=logprobs,
            max_drafts=most_drafts(request),
            grammar=structure.grammar if structure else None,
        )
        drawn = sampling_params(request, service.info, wanted)
        params += siblings(_with_scores(drawn, request), n)
    names = [f"{request_id}-{index}" for index in range(len(params))]
    rules = text_rules(request, structure.field if structure else "", silent=request.max_tokens == 0)
    ids = [prompt.ids for prompt in prompts for _ in range(n)]
    answers = {name: Answer(i, ids[i], service.tokenizer, rules) for i, name in enumerate(names)}
    limit = service.limit(request.timeout_seconds)
    reply = service.submit(names, ids, params, limit.seconds - record.age)
    return Exchange(reply, answers, n, record, limit, service.info.sources)


def _with_scores(params: SamplingParams, request: CompletionRequest) -> SamplingParams:
    """Echoed prompts show log-probabilities too, so the engine must score them."""
    if not request.echo or request.logprobs is None:
        return params
    return replace(params, prompt_logprobs=max(request.logprobs, params.prompt_logprobs))


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """How completions words its events and its whole answer. `offsets`: by answer, where its next token begins."""

    id: str
    created: int
    model: str
    request: CompletionRequest
    tokenizer: Tokenizer
    prompts: list[Prompt]
    offsets: dict[int, int] = field(default_factory=dict)

    def opening(self, answer: Answer) -> Iterator[Completion]:
        """The echoed prompt, when that was asked."""
        if self.request.echo:
            choice = TextChoice(
                index=answer.index, text=self._prompt(answer).text, logprobs=self._echo_logprobs(answer)
            )
            yield self._reply([choice])

    def event(self, answer: Answer, delta: Delta) -> Completion:
        """What one delta adds."""
        return self._reply([self._choice(answer, [delta])])

    def usage_event(self, used: Usage) -> Completion:
        """Usage alone, without choices."""
        return Completion(id=self.id, created=self.created, model=self.model, choices=[], usage=used)

    def whole(self, exchange: Exchange, deltas: dict[str, list[Delta]]) -> Completion:
        """The answer to a request that is not streamed."""
        choices = [self._whole_choice(answer, deltas[name]) for name, answer in exchange.answers.items()]
        reply = self._reply(choices)
        reply.usage = exchange.usage
        return reply

    def _whole_choice(self, answer: Answer, deltas: list[Delta]) -> TextChoice:
        echoed = next(self.opening(answer)).choices[0] if self.request.echo else TextChoice(index=answer.index, text="")
        choice = self._choice(answer, deltas)
        choice.text = echoed.text + choice.text
        choice.logprobs = _joined([echoed.logprobs, choice.logprobs])
        if self.request.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(answer)
        if self.request.return_token_ids:
            choice.prompt_token_ids = answer.prompt
        return choice

    def _choice(self, answer: Answer, deltas: list[Delta]) -> TextChoice:
        last = deltas[-1]
        parts = [self._logprobs(answer, delta) for delta in deltas]
        return TextChoice(
            index=answer.index,
            text="".join(delta.text for delta in deltas),
            logprobs=_joined(parts),
            finish_reason=last.finish,
            stop_reason=UNSET if last.stop_reason is None else last.stop_reason,
            token_ids=all_ids(deltas) if self.request.return_token_ids else UNSET,
            pieces=all_pieces(deltas) or UNSET,
        )

    def _reply(self, choices: list[TextChoice]) -> Completion:
        options = self.request.stream_options
        usage = None if options and options.include_usage else UNSET
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)

    def _prompt(self, answer: Answer) -> Prompt:
        return self.prompts[answer.index // (self.request.n or 1)]

    def _echo_logprobs(self, answer: Answer) -> TextLogprobs | None:
        if self.request.logprobs is None:
            return None
        rows: list[ScoredToken] = [(answer.prompt[0], None, [], [])]
        rows += [(token, chosen, ids, top) for token, chosen, _, ids, top in answer.scored_prompt()]
        return self._table(answer, rows)

    def _logprobs(self, answer: Answer, delta: Delta) -> TextLogprobs | None:
        if self.request.logprobs is None or delta.logprobs is None:
            return None
        scores = delta.logprobs
        return self._table(answer, zip(delta.ids, scores.chosen, scores.top_ids, scores.top, strict=True))

    def _table(self, answer: Answer, rows: Iterable[ScoredToken]) -> TextLogprobs:
        """Parallel lists; the chosen token is always among the alternatives, as OpenAI has it."""
        table = TextLogprobs([], [], [], [])
        most = self.request.logprobs or 0
        offset = self.offsets.get(answer.index, 0)
        for token, chosen, ids, top in rows:
            text = token_text(self.tokenizer, token)
            table.tokens.append(text)
            table.token_logprobs.append(chosen)
            named = {token_text(self.tokenizer, i): p for i, p in zip(ids[:most], top[:most], strict=True)}
            table.top_logprobs.append(None if chosen is None else {text: chosen} | named)
            table.text_offset.append(offset)
            offset += len(text)
        self.offsets[answer.index] = offset
        return table


ScoredToken = tuple[int, float | None, list[int], list[float]]


def _joined(parts: Iterable[TextLogprobs | None]) -> TextLogprobs | None:
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return TextLogprobs(
        tokens=[item for part in found for item in part.tokens],
        token_logprobs=[item for part in found for item in part.token_logprobs],
        top_logprobs=[item for part in found for item in part.top_logprobs],
        text_offset=[item for part in found for item in part.text_offset],
    )
