"""How an answer is to be drawn, as people say it, and what the engine gets of it.

`Sampling` has what can be checked by itself (types and ranges), `sampling_params` what needs the model: defaults are
looked up there, and nothing passes that the engine could not run. The HTTP endpoints and the LLM class both stand on
this, so the same words give the same text. Knows no HTTP and no engine, only what the engine says of itself.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from overdrive.errors import BadRequest
from overdrive.structured import Structured
from overdrive.types import GrammarSpec, SamplingParams
from overdrive.wire import EngineInfo

MAX_N = 128  # answers of one prompt
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 256
MAX_BIAS = 1024
MAX_LOGPROBS = 20  # alternatives per token

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Alternatives = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]

GREEDY_BELOW = 1e-5  # temperatures so small that dividing logits by them overflows are greedy
SEED_BITS = 63
MAX_STOP_BYTES = 1024  # of all stop strings of a request: every answer has an automaton with a state per byte


class Sampling(Structured):
    """How one prompt's answers are drawn; the meanings are those of `SamplingParams`. None is the model's default."""

    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(default=None, description="0 and -1 are off.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(default=None, max_length=MAX_BIAS)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Alternatives | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What endpoints call by different names: the prompt, the most tokens of the answer, log-probabilities and drafts.

    max_tokens: None takes the room left. logprobs, max_drafts, grammar: as in `SamplingParams`. The `_param`s are the
    names in error messages.
    """

    prompt: list[int]
    prompt_param: str
    max_tokens: int | None
    max_tokens_param: str = "max_tokens"
    logprobs: int = -1
    max_drafts: int = -1
    grammar: GrammarSpec | None = None


def sampling_params(sampling: Sampling, info: EngineInfo, wanted: Wanted) -> SamplingParams:
    """Everything the engine needs to draw the answer of one prompt.

    Raises BadRequest for a prompt or an answer that cannot fit, and for ids outside the vocabulary.
    """
    limit = room_for(info, wanted)
    temperature = _given(sampling.temperature, info, "temperature", 1.0)
    return SamplingParams(
        max_tokens=limit,
        min_tokens=_min_tokens(sampling, limit),
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=max(0, int(_given(sampling.top_k, info, "top_k", 0))),
        top_p=_given(sampling.top_p, info, "top_p", 1.0),
        min_p=_given(sampling.min_p, info, "min_p", 0.0),
        presence_penalty=sampling.presence_penalty or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        repetition_penalty=_given(sampling.repetition_penalty, info, "repetition_penalty", 1.0),
        logit_bias=_bias(sampling.logit_bias or {}, info.vocab_size),
        seed=sampling.seed & ((1 << SEED_BITS) - 1) if sampling.seed is not None else secrets.randbits(SEED_BITS),
        stop_token_ids=_stop_ids(sampling, info),
        stop=_stops(sampling),
        logprobs=wanted.logprobs,
        prompt_logprobs=-1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs,
        max_drafts=wanted.max_drafts,
        grammar=wanted.grammar,
    )


def room_for(info: EngineInfo, wanted: Wanted) -> int:
    """How many tokens the answer may have: what was asked for, or all that is left behind the prompt.

    Raises BadRequest with both numbers when prompt or answer do not fit.
    """
    length, most = len(wanted.prompt), wanted.max_tokens
    limit = min(info.max_model_len, info.kv_tokens)
    whose = "the model's context" if limit == info.max_model_len else "the KV cache"
    if length == 0:
        raise BadRequest("the prompt is empty: it must hold at least one token", wanted.prompt_param)
    if length >= limit:
        message = f"the prompt has {length} tokens, {whose} holds {limit}, one of them for the answer"
        raise BadRequest(message, wanted.prompt_param, "context_length_exceeded")
    if most is not None and length + most > limit:
        message = f"prompt ({length} tokens) and {wanted.max_tokens_param} ({most}) exceed the {limit} of {whose}"
        raise BadRequest(message, wanted.max_tokens_param, "context_length_exceeded")
    return limit - length if most is None else max(1, most)


def siblings(params: SamplingParams, n: int) -> list[SamplingParams]:
    """Parameters of the n answers of one prompt. Answer 0 has the seed itself, so it equals the answer of n = 1."""
    return [params] + [replace(params, seed=sibling_seed(params.seed, i)) for i in range(1, n)]


def sibling_seed(seed: int, index: int) -> int:
    """Seed of answer `index` >= 1: a hash, so that neighbouring seeds do not share answers."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)


def stop_strings(sampling: Sampling) -> list[str]:
    """The stop strings, in the order in which the engine numbers them."""
    return [sampling.stop] if isinstance(sampling.stop, str) else list(sampling.stop or ())


def _stops(sampling: Sampling) -> tuple[bytes, ...]:
    stops = tuple(text.encode() for text in stop_strings(sampling))
    if sum(map(len, stops)) > MAX_STOP_BYTES:
        raise BadRequest(f"stop: the strings have more than {MAX_STOP_BYTES} bytes together", "stop")
    return stops


def _given(value: float | None, info: EngineInfo, name: str, otherwise: float) -> float:
    """The client's value, else the model's own default, else the neutral one."""
    return value if value is not None else info.defaults.get(name, otherwise)


def _min_tokens(sampling: Sampling, max_tokens: int) -> int:
    least = sampling.min_tokens or 0
    if least > max_tokens:
        raise BadRequest(f"min_tokens ({least}) exceeds the {max_tokens} tokens the answer may have", "min_tokens")
    return least


def _bias(bias: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10:
            raise BadRequest(f"logit_bias: {key[:40]!r} is not a token id", "logit_bias")
        _check_id(int(key), vocab_size, "logit_bias")
        pairs[int(key)] = value
    return tuple(pairs.items())


def _stop_ids(sampling: Sampling, info: EngineInfo) -> tuple[int, ...]:
    own = sampling.stop_token_ids or []
    check_ids(own, info.vocab_size, "stop_token_ids")
    eos = () if sampling.ignore_eos else info.eos_ids
    return tuple(dict.fromkeys((*eos, *own)))


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises BadRequest for token ids that the model does not have."""
    if ids:
        _check_id(max(ids), vocab_size, param)
        _check_id(min(ids), vocab_size, param)


def _check_id(token: int, vocab_size: int, param: str) -> None:
    if not 0 <= token < vocab_size:
        raise BadRequest(f"{param}: token id {token} is outside the vocabulary (0 to {vocab_size - 1})", param)
