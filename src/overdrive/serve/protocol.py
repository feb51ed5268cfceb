"""What clients may send, as strict models: a value of the wrong type or outside its range is refused, never bent.

Field names and meanings are those of the OpenAI API, then of the extensions that other open servers have made common.
`None` (JSON null) always means "the default". How tokens are drawn, and the checks that need the model (vocabulary,
room left), is in `overdrive/parameters.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from overdrive.parameters import Alternatives, Sampling, TokenId
from overdrive.strict import Model
from overdrive.structured import Ignored
from overdrive.tooled import Tool, Tooled

MAX_PROMPTS = 256  # prompts of one completions request


class StreamOptions(Model):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class Speculation(Model):
    """Extension: how this request may be speculated. The text never depends on it, only its speed.

    In place of the object one word will do: "auto", "off" or "max:K".
    """

    enabled: bool = True
    max_drafts: Annotated[int, Field(ge=0, le=64)] | None = Field(default=None, description="Most drafts per step.")
    report: bool = Field(default=False, description="Each choice carries its text token by token, with who wrote each.")

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        """The words of `--speculation`, but for those that fix K: all rows of a step share it."""
        if not isinstance(value, str):
            return value
        word, _, number = value.partition(":")
        if value in ("auto", "off"):
            return {"enabled": value == "auto"}
        if word == "fixed":
            raise ValueError("a request cannot fix its drafts, only cap them: send 'max:K'")
        if word != "max" or not (number.isascii() and number.isdigit() and len(number) < 3):
            raise ValueError("should be 'auto', 'off', 'max:K' or an object")
        return {"max_drafts": int(number)}


class SamplingRequest(Sampling):
    """Parameters that chat and text completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    speculation: Speculation | None = None
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    user: Ignored = None
    store: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None


class FunctionCall(Model):
    """A tool call that the assistant made earlier. `arguments` is JSON in a string, as OpenAI sends it."""

    name: str
    arguments: str


class ToolCall(Model):
    """One entry of an assistant message's `tool_calls`."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Ignored = None


class TextPart(Model):
    """A piece of a message's content; text is the only kind a text model takes."""

    type: Literal["text"]
    text: str


class Message(Model):
    """One turn. `developer` is read as `system`. Fields that clients echo from a reply are accepted when empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Ignored = None


class ChatRequest(SamplingRequest, Tooled):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(SamplingRequest):
    """Body of /v1/completions. `max_tokens` 0 is allowed with `echo`: it scores the prompt and generates nothing."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Alternatives | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(Model):
    """Body of /tokenize: a text, or messages that are put through the chat template first."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Model):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


class SpeculationChange(Model):
    """Body of PUT /speculation: who is to decide how much is drafted, in the words of `--speculation`."""

    speculation: str
