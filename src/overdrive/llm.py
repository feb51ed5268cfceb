"""Overdrive in a Python program, without a server: `from overdrive import LLM`.

The engine is the server's, and so are the meaning of every parameter, the defaults and the text.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from overdrive.bars import BatchBar, LoadingBars
from overdrive.checks import check_engine, override
from overdrive.commit import Delta
from overdrive.completion import Answer, Completion
from overdrive.config import EngineOptions
from overdrive.engine import build
from overdrive.errors import BadRequest, OverdriveError
from overdrive.parameters import (
    Alternatives,
    Sampling,
    Wanted,
    check_ids,
    sampling_params,
    siblings,
    stop_strings,
)
from overdrive.strict import invalid
from overdrive.structured import structure_of
from overdrive.text import CommittedText, open_text
from overdrive.text.pieces import TokenTable
from overdrive.tooled import Tooled, tool_use
from overdrive.tools.style import chat_style
from overdrive.tools.turn import Asked, TurnReader, prepare
from overdrive.types import GrammarSpec, SamplingParams

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
NO_LIMIT = 1 << 31
QUEUED_PER_ROW = 2  # answers that wait in the engine for each that runs: enough for it to choose from


class Parameters(Sampling, Tooled):
    """`Sampling`, and what the server's endpoints call by other names. See `LLM.generate`."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Alternatives | None = None
    max_drafts: Annotated[int, Field(ge=0)] | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _named(cls, bias: Any) -> Any:
        """Token ids may be numbers here; in JSON they are names."""
        return {str(token): value for token, value in bias.items()} if isinstance(bias, dict) else bias


@dataclass(frozen=True, slots=True)
class Ready:
    """A prompt with what its parameters make of it. param: its name in error messages. table: tokens as text."""

    param: str
    prompt: list[int]
    grammar: GrammarSpec | None
    table: TokenTable
    new_reader: Callable[[], TurnReader | None]


Source = Callable[[Parameters], Ready]


class LLM:
    """A model in this process. Use it from one thread at a time, and close it or use it in a `with` block.

    with LLM("smollm2") as llm:
        [answer] = llm.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=50)
        print(answer.text)
    """

    def __init__(
        self, model: str, *, options: EngineOptions = EngineOptions(), progress: bool = True, **overrides: Any
    ) -> None:
        """Load a model.

        model: "smollm2", a folder with config.json and safetensors, a hub id, or a .gguf file.
        options: everything that `overdrive serve --help` lists for the engine; `overrides` are single ones of them by
        name, such as drafts=5, draft="none", max_model_len=4096, threads=4 or precision="int8".
        progress: show bars while the model loads and while batches run.
        Raises OverdriveError, one line, for whatever is wrong with model or options.
        """
        options = override(options, overrides)
        check_engine(options)
        # Nobody is refused in one's own process: the queue ends where memory does.
        options = replace(options, scheduler=replace(options.scheduler, max_queue=NO_LIMIT))
        self._quiet = not progress
        with LoadingBars(self._quiet) as bars:
            self._engine = build(model, options, bars.update)
        self.info = self._engine.info
        self.tokenizer, self._template = open_text(Path(self.info.source), options.model)
        self._style = chat_style(self._template, self.tokenizer, options.model.tool_format)
        self._running: dict[str, Answer] = {}
        self._numbers = itertools.count()
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        each: Sequence[Mapping[str, Any]] = (),
        add_special_tokens: bool = True,
        **parameters: Any,
    ) -> list[Completion]:
        """Continue one prompt or many, all of them together. Answers come in the order of the prompts.

        prompts: texts, or token ids.
        each: parameters of each prompt that differ from the common ones, one mapping per prompt.
        add_special_tokens: put the model's beginning-of-text token before texts.
        parameters: max_tokens (default: the room left), temperature (0 is greedy), top_p, top_k, min_p, n (answers per
        prompt, which stand together), seed, stop (a string or a list), stop_token_ids, include_stop_str_in_output,
        min_tokens, ignore_eos, presence_penalty, frequency_penalty, repetition_penalty, logit_bias, logprobs and
        prompt_logprobs (alternatives per token), max_drafts (0: no speculation), and what holds the text to a
        structure: response_format, structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar and
        the like, as over HTTP. The model's own defaults hold for what is not given.
        Raises BadRequest, which names the parameter, before anything runs.
        """
        given: Any = [prompts] if isinstance(prompts, str) or _is_ids(prompts) else prompts
        ids = [self._encode(prompt, index, add_special_tokens) for index, prompt in enumerate(given)]
        return self._run(self._answers([partial(self._text, one) for one in ids], each, parameters))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        *,
        each: Sequence[Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> list[Completion]:
        """The assistant's next turn in one conversation or in many.

        messages: OpenAI's shape, a list of {"role": ..., "content": ...}; or a list of such lists.
        chat_template_kwargs: further names for the chat template (enable_thinking, ...).
        parameters: as in `generate`, and tools, tool_choice and parallel_tool_calls in OpenAI's shape.
        """
        one = not messages or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if one else messages
        turns = [partial(self._turn, conversation, chat_template_kwargs) for conversation in conversations]
        return self._run(self._answers(turns, each, parameters))

    def stream(self, prompt: Prompt, *, add_special_tokens: bool = True, **parameters: Any) -> Iterator[str]:
        """The text that continues `prompt`, piece by piece. Closing the iterator ends the request."""
        ids = self._encode(prompt, 0, add_special_tokens)
        return self._stream(self._answers([partial(self._text, ids)], (), parameters))

    def stream_chat(
        self, messages: Sequence[Message], *, chat_template_kwargs: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Iterator[str]:
        """What the assistant's next turn says to the user, piece by piece. Closing the iterator ends the request."""
        turn = partial(self._turn, messages, chat_template_kwargs)
        return self._stream(self._answers([turn], (), parameters))

    def close(self) -> None:
        """End what runs and let go of the threads; the object is of no use afterwards."""
        if not self._closed:
            self._abort(list(self._running.values()))
            self._engine.close()
            self._closed = True

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- from words to engine requests ---------------------------------------------------------------------------

    def _encode(self, prompt: Prompt, index: int, add_special_tokens: bool) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=add_special_tokens)
        try:
            ids = [operator.index(token) for token in prompt]
        except TypeError:
            raise BadRequest(f"prompts[{index}] must be a text or a list of token ids", "prompts") from None
        check_ids(ids, self.info.vocab_size, "prompts")
        return ids

    def _text(self, ids: list[int], given: Parameters) -> Ready:
        if given.tools or given.tool_choice not in (None, "none", "auto"):
            raise BadRequest("tools: only a chat can call them", "tools")
        structure = structure_of(given)
        return Ready("prompts", ids, structure.grammar if structure else None, self.tokenizer.table, lambda: None)

    def _turn(self, messages: Sequence[Message], names: Mapping[str, Any] | None, given: Parameters) -> Ready:
        asked = Asked(messages=messages, structure=structure_of(given), use=tool_use(given), names=names)
        turn = prepare(asked, self._style, self._template, self.tokenizer)
        reader = partial(TurnReader, self._style, turn.reasons, asked.function_names)
        return Ready("messages", turn.prompt, turn.grammar, self._style.table, reader)

    def _answers(
        self, sources: Sequence[Source], each: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
    ) -> list[Answer]:
        """What is to be generated, checked whole before any of it runs."""
        if each and len(each) != len(sources):
            raise BadRequest(f"each: {len(each)} mappings for {len(sources)} prompts", "each")
        own = each or [{}] * len(sources)
        return [
            answer
            for source, more in zip(sources, own, strict=True)
            for answer in self._siblings(source, _checked({**common, **more}))
        ]

    def _siblings(self, source: Source, given: Parameters) -> list[Answer]:
        ready = source(given)
        wanted = Wanted(
            prompt=ready.prompt,
            prompt_param=ready.param,
            max_tokens=given.max_tokens,
            logprobs=-1 if given.logprobs is None else given.logprobs,
            max_drafts=-1 if given.max_drafts is None else given.max_drafts,
            grammar=ready.grammar,
        )
        first = sampling_params(given, self.info, wanted)
        return [self._answer(ready, params, given) for params in siblings(first, given.n or 1)]

    def _answer(self, ready: Ready, params: SamplingParams, given: Parameters) -> Answer:
        include = bool(given.include_stop_str_in_output)
        text = CommittedText(self.tokenizer, stop_strings(given), include, ready.table)
        return Answer(str(next(self._numbers)), ready.prompt, params, text, self.info.sources, ready.new_reader())

    # -- running -------------------------------------------------------------------------------------------------

    def _run(self, answers: list[Answer]) -> list[Completion]:
        queue, left, tokens = deque(answers), {answer.id for answer in answers}, 0
        try:
            with BatchBar(len(answers), self._quiet) as bar:
                while left:
                    self._fill(queue)
                    for delta in self._advance():
                        tokens += len(delta.tokens)
                        if delta.finish is not None:
                            left.discard(delta.request.id)
                    bar.update(len(answers) - len(left), tokens)
        finally:
            self._abort(answers)
        return [answer.completion() for answer in answers]

    def _stream(self, answers: list[Answer]) -> Iterator[str]:
        if len(answers) != 1:
            raise BadRequest("n: a stream has one answer", "n")
        return self._pieces(answers[0])

    def _pieces(self, answer: Answer) -> Iterator[str]:
        try:
            self._submit(answer)
            while answer.finish is None:
                self._advance()
                if text := answer.fresh():
                    yield text
            if text := answer.fresh():  # committed while somebody else advanced the engine
                yield text
        finally:
            self._abort([answer])

    def _fill(self, queue: deque[Answer]) -> None:
        """Keep the engine supplied, without more in its queue than it looks at."""
        while queue and len(self._running) < (1 + QUEUED_PER_ROW) * self.info.max_rows:
            self._submit(queue.popleft())

    def _submit(self, answer: Answer) -> None:
        if self._closed:
            raise OverdriveError("this LLM is closed")
        if self._engine.failure:
            raise OverdriveError(self._engine.failure)
        self._engine.submit(answer.id, answer.prompt, answer.params)
        self._running[answer.id] = answer

    def _advance(self) -> list[Delta]:
        """One step of the engine, for everybody who waits for it: what it committed."""
        with _uninterrupted():
            deltas = self._engine.advance()
            for delta in deltas:
                answer = self._running[delta.request.id]
                answer.take(delta)
                if delta.finish is not None:
                    del self._running[answer.id]
        return deltas

    def _abort(self, answers: list[Answer]) -> None:
        """End those that still run."""
        for answer in answers:
            if self._running.pop(answer.id, None) is not None:
                for delta in self._engine.abort(answer.id):
                    answer.take(delta)


def _is_ids(prompts: Any) -> bool:
    """Whether this is one prompt of token ids."""
    return len(prompts) > 0 and all(hasattr(token, "__index__") for token in prompts)


def _checked(given: Mapping[str, Any]) -> Parameters:
    """The parameters, of the right types and within their ranges. Raises BadRequest."""
    try:
        return Parameters.model_validate(dict(given))
    except ValidationError as error:
        raise invalid(error) from None


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Holds a Ctrl-C back until the step is whole: an engine left in the middle of one could not go on."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for number, frame in held[:1]:
            handler(number, frame)
