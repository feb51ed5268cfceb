"""One streamed request to an OpenAI-compatible server, timed. Knows the protocol; never why the request is sent.

A chunk may hold several tokens (drafts), so chunks are not counted: the number of tokens is the usage of the last one.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from overdrive.errors import system_reason
from overdrive.json_text import parse_json

USAGE = re.compile(rb'"usage"\s*:\s*\{')
TEXT = re.compile(rb'"(?:content|text|reasoning_content)"\s*:\s*"(?!")')
ERROR = re.compile(rb'^data:\s*\{\s*"error"')


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be sent. kind: what the mixture calls it. body: all but model, stream and the arm's own fields."""

    path: str
    body: dict[str, Any]
    kind: str = "plain"

    @property
    def max_tokens(self) -> int:
        return int(self.body["max_tokens"])


@dataclass(slots=True)
class Sample:
    """What came of one request. Times in seconds of the monotonic clock; first 0: no text ever came.

    rounds: steps of the engine that yielded tokens, where the server tells; error "" when the answer is whole.
    counted: who counted the tokens, "usage" or, where the server sends none, "chunks" (too few with drafts).
    """

    kind: str
    max_tokens: int
    start: float
    first: float = 0.0
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    rounds: int = 0
    counted: str = "usage"
    error: str = ""
    status: int = 0
    usage: dict[str, Any] = field(default_factory=dict)


async def send(http: httpx.AsyncClient, url: str, ask: Ask, model: str, extra: dict[str, Any]) -> Sample:
    """Sends `ask` with the fields `extra` and reads the whole stream.

    Never raises for what a server does wrong: that is the sample's `error`, with status 0 for a broken connection.
    """
    body = {**ask.body, **extra, "model": model, "stream": True, "stream_options": {"include_usage": True}}
    sample = Sample(ask.kind, int(body.get("max_tokens", ask.max_tokens)), time.monotonic())
    try:
        async with http.stream("POST", url + ask.path, json=body) as response:
            sample.status = response.status_code
            if response.status_code == 200:
                await _read(response, sample)
            else:
                sample.error = error_text(response.status_code, await response.aread())
    except httpx.TimeoutException:
        sample.error = "no answer within the time limit (--timeout)"
    except httpx.HTTPError as error:
        sample.status, sample.error = 0, f"connection failed: {system_reason(error)}"
    except (ValueError, AttributeError, KeyError) as error:
        sample.error = f"not an event of this protocol: {error!r}"
    sample.end = time.monotonic()
    return sample


async def _read(response: httpx.Response, sample: Sample) -> None:
    """Follows the events to their end. JSON is read of the one event with the usage alone: parsing each would make this
    client the bottleneck at hundreds of streams."""
    chunks, done = 0, False
    async for line in _lines(response):
        if ERROR.match(line):
            sample.error = error_text(200, line[5:])
        if TEXT.search(line):
            chunks += 1
            sample.first = sample.first or time.monotonic()
        if USAGE.search(line):
            _take_usage(sample, parse_json(line[5:]))
        done = done or line.startswith(b"data: [DONE]")
    if not sample.usage:
        sample.counted, sample.output_tokens = "chunks", chunks
    if not done and not sample.error:
        sample.error = "the stream ended without [DONE]"


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line
    if rest.startswith(b"data:"):
        yield rest


def _take_usage(sample: Sample, event: Any) -> None:
    usage = event["usage"]
    details, cached = usage.get("completion_tokens_details") or {}, usage.get("prompt_tokens_details") or {}
    sample.usage = usage
    sample.prompt_tokens = usage.get("prompt_tokens") or 0
    sample.output_tokens = usage.get("completion_tokens") or 0
    sample.cached_tokens = cached.get("cached_tokens") or 0
    sample.accepted = details.get("accepted_prediction_tokens") or 0
    sample.rejected = details.get("rejected_prediction_tokens") or 0
    sample.rounds = (usage.get("drafts") or {}).get("rounds") or 0


def error_text(status: int, body: bytes) -> str:
    """What the server said was wrong, in one line."""
    try:
        value = parse_json(body)
        error = value.get("error", value.get("detail", value.get("message", value)))
        said = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        said = body.decode(errors="replace")
    return f"HTTP {status}: {' '.join(str(said).split())[:200]}"


async def alive(http: httpx.AsyncClient, url: str) -> bool:
    """Whether a server answers there at all, asked three times within a second."""
    for _ in range(3):
        try:
            await http.get(f"{url}/v1/models", timeout=5)
            return True
        except httpx.HTTPError:
            await asyncio.sleep(0.3)
    return False
