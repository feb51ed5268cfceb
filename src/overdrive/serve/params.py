"""From a request's parameters to `SamplingParams`: every check that needs the model, every default looked up.

What pydantic can check alone stands in `protocol.py`. Nothing passes here that the engine could not run.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace

from overdrive.errors import BadRequest
from overdrive.serve.protocol import ChatRequest, CompletionRequest, SamplingRequest, Speculation
from overdrive.types import SamplingParams
from overdrive.wire import EngineInfo

GREEDY_BELOW = 1e-5  # temperatures so small that dividing logits by them overflows are greedy
SEED_BITS = 63
MAX_STOP_BYTES = 1024  # of all stop strings of a request: every answer has an automaton with a state per byte


def check_chat(request: ChatRequest) -> None:
    """Refuses what chat requests may carry elsewhere but this server cannot do, and contradictions."""
    _check_shared(request)
    if request.tools:
        raise BadRequest("tools are not supported yet", "tools", "unsupported_parameter")
    if request.tool_choice not in (None, "none", "auto"):
        raise BadRequest("tool_choice: without tools only 'none' and 'auto' mean anything", "tool_choice")
    if request.functions:
        raise BadRequest("functions are not supported", "functions", "unsupported_parameter")
    if request.function_call not in (None, "none", "auto"):
        raise BadRequest("function_call: functions are not supported", "function_call", "unsupported_parameter")
    if request.top_logprobs is not None and not request.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
    given = (request.max_tokens, request.max_completion_tokens)
    if None not in given and given[0] != given[1]:
        raise BadRequest("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")


def check_completion(request: CompletionRequest) -> None:
    """Refuses what text completions may carry elsewhere but this server cannot do, and contradictions."""
    _check_shared(request)
    if request.suffix:
        raise BadRequest("suffix (insertion) is not supported", "suffix", "unsupported_parameter")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise BadRequest("best_of other than n is not supported", "best_of", "unsupported_parameter")
    if request.max_tokens == 0 and not request.echo:
        raise BadRequest("max_tokens: 0 needs echo: true (it scores the prompt)", "max_tokens")


def _check_shared(request: SamplingRequest) -> None:
    if sum(len(text.encode()) for text in stop_strings(request)) > MAX_STOP_BYTES:
        raise BadRequest(f"stop: the strings have more than {MAX_STOP_BYTES} bytes together", "stop")
    if request.response_format is not None and request.response_format.type != "text":
        kind = request.response_format.type
        raise BadRequest(f"response_format {kind!r} is not supported yet", "response_format", "unsupported_parameter")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options needs stream: true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise BadRequest("prompt_logprobs is not available in a stream", "prompt_logprobs", "unsupported_parameter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the endpoints call by different names: the prompt, the most tokens of the answer, and log-probabilities.

    max_tokens: None takes the room left. logprobs: as in `SamplingParams`. The `_param`s are the names in complaints.
    """

    prompt: list[int]
    prompt_param: str
    max_tokens: int | None
    max_tokens_param: str = "max_tokens"
    logprobs: int = -1


def sampling_params(request: SamplingRequest, info: EngineInfo, wanted: Wanted) -> SamplingParams:
    """Everything the engine needs to draw the answer of one prompt.

    Raises BadRequest for a prompt or an answer that cannot fit, and for ids outside the vocabulary.
    """
    limit = room_for(info, wanted)
    temperature = _given(request.temperature, info, "temperature", 1.0)
    return SamplingParams(
        max_tokens=limit,
        min_tokens=_min_tokens(request, limit),
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=max(0, int(_given(request.top_k, info, "top_k", 0))),
        top_p=_given(request.top_p, info, "top_p", 1.0),
        min_p=_given(request.min_p, info, "min_p", 0.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_given(request.repetition_penalty, info, "repetition_penalty", 1.0),
        logit_bias=_bias(request.logit_bias or {}, info.vocab_size),
        seed=request.seed & ((1 << SEED_BITS) - 1) if request.seed is not None else secrets.randbits(SEED_BITS),
        stop_token_ids=_stop_ids(request, info),
        stop=tuple(text.encode() for text in stop_strings(request)),
        logprobs=wanted.logprobs,
        prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
        max_drafts=_max_drafts(request.speculation or Speculation()),
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


def stop_strings(request: SamplingRequest) -> list[str]:
    """The stop strings, in the order in which the engine numbers them."""
    return [request.stop] if isinstance(request.stop, str) else list(request.stop or ())


def _given(value: float | None, info: EngineInfo, name: str, otherwise: float) -> float:
    """The client's value, else the model's own default, else the neutral one."""
    return value if value is not None else info.defaults.get(name, otherwise)


def _min_tokens(request: SamplingRequest, max_tokens: int) -> int:
    least = request.min_tokens or 0
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


def _stop_ids(request: SamplingRequest, info: EngineInfo) -> tuple[int, ...]:
    own = request.stop_token_ids or []
    check_ids(own, info.vocab_size, "stop_token_ids")
    eos = () if request.ignore_eos else info.eos_ids
    return tuple(dict.fromkeys((*eos, *own)))


def check_ids(ids: list[int], vocab_size: int, param: str) -> None:
    """Raises BadRequest for token ids that the model does not have."""
    if ids:
        _check_id(max(ids), vocab_size, param)


def _check_id(token: int, vocab_size: int, param: str) -> None:
    if token >= vocab_size:
        raise BadRequest(f"{param}: token id {token} is outside the vocabulary (0 to {vocab_size - 1})", param)


def _max_drafts(speculation: Speculation) -> int:
    if not speculation.enabled:
        return 0
    return -1 if speculation.max_drafts is None else speculation.max_drafts
