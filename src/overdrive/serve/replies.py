"""What the server answers, as msgspec structs: one definition for encoding, for streams and for the OpenAPI document.

`UNSET` fields are left out of the JSON; `None` ones are sent as null, which is what OpenAI's clients expect of them.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from overdrive.draft_report import DraftReport

FinishWord = Literal["stop", "length", "tool_calls"]


class PromptDetails(Struct):
    """cached_tokens: prompt tokens whose KV was found in the prefix cache."""

    cached_tokens: int = 0


class CompletionDetails(Struct):
    """accepted: output tokens that came from drafts. rejected: drafts verified and thrown away (not in any count).

    reasoning_tokens: output tokens of the reasoning, for models that have it.
    """

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int | UnsetType = UNSET


class Usage(Struct):
    """A prompt with n answers is counted once; `completion_tokens` counts what was committed, end tokens included.

    drafts: extension; how this request was speculated.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    drafts: DraftReport


class TopLogprob(Struct):
    """One alternative at a position. `bytes` are the token's own, also where it is only part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    """The token that stands at a position, and the likeliest ones there."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """Log-probabilities of the tokens of a chat answer."""

    content: list[TokenLogprob]


class TextLogprobs(Struct):
    """Log-probabilities in the form of /v1/completions: parallel lists, null where a token has no prediction."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(Struct):
    """A candidate at a prompt position; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]


class TextPiece(Struct):
    """A stretch of the text and whether it came from a draft."""

    text: str
    drafted: bool


class CalledFunction(Struct):
    """Name and arguments of a call; arguments are JSON in a string."""

    name: str
    arguments: str


class ToolCall(Struct, kw_only=True):
    """One call that the assistant makes."""

    id: str
    type: str = "function"
    function: CalledFunction


class CalledFunctionDelta(Struct):
    """What a chunk adds to a call's function."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    """What a chunk adds to call `index`: its id and name come first, then its arguments piece by piece."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: CalledFunctionDelta


class ChatMessage(Struct, kw_only=True):
    """The assistant's turn. content is null where it is calls alone."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True):
    """What a chunk adds to the assistant's turn."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    pieces: list[TextPiece] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """What a chunk adds to one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    pieces: list[TextPiece] | UnsetType = UNSET


class TextChoice(Struct, kw_only=True):
    """One answer of /v1/completions, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishWord | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    pieces: list[TextPiece] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """One event of a streamed chat answer."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class Completion(Struct, kw_only=True):
    """Answer of /v1/completions, or one event of it."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


class ModelCard(Struct, kw_only=True):
    """One entry of /v1/models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "overdrive"
    max_model_len: int


class ModelList(Struct, kw_only=True):
    """Answer of /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class Tokenized(Struct, kw_only=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Struct):
    """Answer of /detokenize."""

    prompt: str


class SpeculationSetting(Struct):
    """Answer of /speculation: who decides how much is drafted."""

    speculation: str


ANSWERS: tuple[type[msgspec.Struct], ...] = (
    *(ChatCompletion, Completion, ModelList, ModelCard),
    *(Tokenized, Detokenized, SpeculationSetting),
)
