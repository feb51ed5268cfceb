"""/v1/chat/completions: messages in, an assistant's turn out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from fastapi import Request, Response
from msgspec import UNSET

from overdrive.parameters import Wanted, sampling_params, siblings, stop_strings
from overdrive.serve.answer import Answer, Delta, TextRules, prompt_logprobs, token_text
from overdrive.serve.params import check_chat, most_drafts
from overdrive.serve.protocol import ChatRequest, SamplingRequest
from overdrive.serve.record import RequestRecord, record_of
from overdrive.serve.replies import (
    CalledFunction,
    CalledFunctionDelta,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    FinishWord,
    TextPiece,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from overdrive.serve.service import Service, off_loop
from overdrive.serve.stream import Exchange, json_response, stream_response, whole_answers
from overdrive.structured import structure_of
from overdrive.text import Tokenizer
from overdrive.tooled import tool_use
from overdrive.tools.calls import CallPiece, whole_calls
from overdrive.tools.reasoning import ReasoningTokens
from overdrive.tools.turn import Asked, Turn, TurnReader
from overdrive.wire import Logprobs


async def chat_completion(http: Request, request: ChatRequest, service: Service) -> Response:
    """Answers one chat request, streamed or whole. Raises BadRequest before anything is sent."""
    record = record_of(http)
    check_chat(request)
    service.check_model(request.model)
    asked, turn = await off_loop(lambda: _read_turn(request, service))
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    exchange = _submit(request, service, asked, turn, request_id, record)
    form = ChatForm(
        request_id, int(time.time()), service.name, request, service.tokenizer, _readers(asked, turn, service)
    )
    if request.stream:
        options = request.stream_options
        return await stream_response(http, exchange, form, bool(options and options.include_usage))
    deltas = await whole_answers(http, exchange)
    return json_response(form.whole(exchange, deltas))


def _read_turn(request: ChatRequest, service: Service) -> tuple[Asked, Turn]:
    """What is asked, and its prompt and grammar."""
    asked = Asked(
        messages=[message.model_dump(exclude_none=True) for message in request.messages],
        structure=structure_of(request),
        use=tool_use(request),
        names=request.chat_template_kwargs,
        open_turn=request.add_generation_prompt is not False,
    )
    return asked, service.prepare(asked)


def _readers(asked: Asked, turn: Turn, service: Service) -> Callable[[], TurnReader]:
    return lambda: TurnReader(service.style, turn.reasons, asked.function_names)


def text_rules(request: SamplingRequest, grammar_field: str, silent: bool = False) -> TextRules:
    """How `request` wants its text. The rest is as in `TextRules`."""
    return TextRules(
        stops=stop_strings(request),
        stop_ids=request.stop_token_ids or (),
        include_stop=bool(request.include_stop_str_in_output),
        report=bool(request.speculation and request.speculation.report),
        silent=silent,
        grammar_field=grammar_field,
    )


def _submit(
    request: ChatRequest, service: Service, asked: Asked, turn: Turn, request_id: str, record: RequestRecord
) -> Exchange:
    n, prompt = request.n or 1, turn.prompt
    old_name = request.max_tokens is not None
    wanted = Wanted(
        prompt=prompt,
        prompt_param="messages",
        max_tokens=request.max_tokens if old_name else request.max_completion_tokens,
        max_tokens_param="max_tokens" if old_name else "max_completion_tokens",
        logprobs=(request.top_logprobs or 0) if request.logprobs else -1,
        max_drafts=most_drafts(request),
        grammar=turn.grammar,
    )
    params = siblings(sampling_params(request, service.info, wanted), n)
    names = [f"{request_id}-{index}" for index in range(n)]
    style = service.style
    rules = replace(
        text_rules(request, asked.field),
        table=style.table,
        new_reasoning=partial(ReasoningTokens, style.open_ids, style.close_ids, turn.reasons)
        if style.thinking
        else None,
    )
    answers = {name: Answer(index, prompt, service.tokenizer, rules) for index, name in enumerate(names)}
    limit = service.limit(request.timeout_seconds)
    reply = service.submit(names, [prompt] * n, params, limit.seconds - record.age)
    return Exchange(reply, answers, n, record, limit, service.info.sources)


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How chat words its events and its whole answer. new_reader: of one answer. readers: by index, in a stream."""

    id: str
    created: int
    model: str
    request: ChatRequest
    tokenizer: Tokenizer
    new_reader: Callable[[], TurnReader]
    readers: dict[int, TurnReader] = field(default_factory=dict)

    def opening(self, answer: Answer) -> Iterator[ChatChunk]:
        """The role comes alone, before any text."""
        yield self._chunk(ChatChunkChoice(index=answer.index, delta=ChatDelta(role="assistant", content="")))

    def event(self, answer: Answer, delta: Delta) -> ChatChunk | None:
        """What one delta adds; nothing where it is a call's or reasoning's markup alone."""
        reader = self.readers.get(answer.index) or self.readers.setdefault(answer.index, self.new_reader())
        part = reader.take(delta.text, last=delta.finish is not None)
        told = part.content or part.reasoning or part.calls or delta.finish or delta.pieces
        if not (told or self.request.logprobs or self.request.return_token_ids):
            return None
        choice = ChatChunkChoice(
            index=answer.index,
            delta=ChatDelta(
                content=part.content or UNSET,
                reasoning_content=part.reasoning or UNSET,
                tool_calls=[call_delta(piece) for piece in part.calls] or UNSET,
            ),
            logprobs=self._logprobs([delta]),
            finish_reason=finish_word(delta, reader),
            token_ids=delta.ids if self.request.return_token_ids else UNSET,
            pieces=delta.pieces or UNSET,
        )
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        return self._chunk(choice)

    def usage_event(self, used: Usage) -> ChatChunk:
        """Usage alone, without choices."""
        return ChatChunk(id=self.id, created=self.created, model=self.model, choices=[], usage=used)

    def whole(self, exchange: Exchange, deltas: dict[str, list[Delta]]) -> ChatCompletion:
        """The answer to a request that is not streamed."""
        answers = exchange.answers
        first = next(iter(answers.values()))
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(answer, deltas[name]) for name, answer in answers.items()],
            usage=exchange.usage,
            prompt_logprobs=UNSET if self.request.prompt_logprobs is None else prompt_logprobs(first),
            prompt_token_ids=first.prompt if self.request.return_token_ids else UNSET,
        )

    def _choice(self, answer: Answer, deltas: list[Delta]) -> ChatChoice:
        last, reader = deltas[-1], self.new_reader()
        part = reader.take("".join(delta.text for delta in deltas), last=True)
        calls = [ToolCall(id=c.id, function=CalledFunction(c.name, c.arguments)) for c in whole_calls(part.calls)]
        return ChatChoice(
            index=answer.index,
            message=ChatMessage(
                role="assistant",
                content=None if calls and not part.content else part.content,
                reasoning_content=part.reasoning or UNSET,
                tool_calls=calls or UNSET,
            ),
            logprobs=self._logprobs(deltas),
            finish_reason=finish_word(last, reader) or "stop",
            stop_reason=UNSET if last.stop_reason is None else last.stop_reason,
            token_ids=all_ids(deltas) if self.request.return_token_ids else UNSET,
            pieces=all_pieces(deltas) or UNSET,
        )

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        options = self.request.stream_options
        usage = None if options and options.include_usage else UNSET
        return ChatChunk(id=self.id, created=self.created, model=self.model, choices=[choice], usage=usage)

    def _logprobs(self, deltas: list[Delta]) -> ChatLogprobs | None:
        if not self.request.logprobs:
            return None
        content = [
            token
            for delta in deltas
            if delta.logprobs is not None
            for token in token_logprobs(self.tokenizer, delta.ids, delta.logprobs, self.request.top_logprobs or 0)
        ]
        return ChatLogprobs(content)


def finish_word(delta: Delta, reader: TurnReader) -> FinishWord | None:
    """Why an answer ended: "tool_calls" where it made calls, all of them whole, and ended of itself."""
    return "tool_calls" if delta.finish == "stop" and reader.calls_whole else delta.finish


def call_delta(piece: CallPiece) -> ToolCallDelta:
    """A piece of a call as OpenAI's streams have it: id, type and name once, with empty arguments."""
    if not piece.id:
        return ToolCallDelta(index=piece.index, function=CalledFunctionDelta(arguments=piece.arguments))
    function = CalledFunctionDelta(name=piece.name, arguments=piece.arguments)
    return ToolCallDelta(index=piece.index, id=piece.id, type="function", function=function)


def all_ids(deltas: list[Delta]) -> list[int]:
    """The token ids of an answer, end token included."""
    return [token for delta in deltas for token in delta.ids]


def all_pieces(deltas: list[Delta]) -> list[TextPiece]:
    """The text of an answer, stretch by stretch; empty when nobody asked."""
    return [piece for delta in deltas for piece in delta.pieces]


def token_logprobs(tokenizer: Tokenizer, ids: list[int], scores: Logprobs, most: int) -> Iterator[TokenLogprob]:
    """Log-probabilities of `ids`, each with up to `most` alternatives."""
    for token, chosen, top_ids, top in zip(ids, scores.chosen, scores.top_ids, scores.top, strict=True):
        pairs = zip(top_ids[:most], top[:most], strict=True)
        alternatives = [TopLogprob(token_text(tokenizer, i), p, list(tokenizer.bytes_of(i))) for i, p in pairs]
        yield TokenLogprob(token_text(tokenizer, token), chosen, list(tokenizer.bytes_of(token)), alternatives)
