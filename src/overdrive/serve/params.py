"""What a request says beside `Sampling`: refusals of what cannot be done yet, contradictions, the cap on drafts.

What pydantic can check alone stands in `protocol.py`, what needs the model in `parameters.py`.
"""

from __future__ import annotations

from overdrive.errors import BadRequest
from overdrive.serve.protocol import ChatRequest, CompletionRequest, SamplingRequest, Speculation


def check_chat(request: ChatRequest) -> None:
    """Refuses what chat requests may carry elsewhere but this server cannot do, and contradictions."""
    _check_shared(request)
    if request.functions:
        raise BadRequest("functions are not supported; send them as tools", "functions", "unsupported_parameter")
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
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options needs stream: true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise BadRequest("prompt_logprobs is not available in a stream", "prompt_logprobs", "unsupported_parameter")


def most_drafts(request: SamplingRequest) -> int:
    """The request's cap on its drafts per step, as in `SamplingParams`."""
    speculation = request.speculation or Speculation()
    if not speculation.enabled:
        return 0
    return -1 if speculation.max_drafts is None else speculation.max_drafts
