"""Random requests of every kind, and how each of them ended, told from what its client saw.

Knows HTTP and the OpenAI protocol; never the server's insides.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx

TEXT = "the cat sat on a mat and told 12 tales of salt, ships, storms and \n quiet harbours - né à Ålesund 雪"
WORDS = TEXT.split(" ")
SHARED = " ".join(WORDS * 6)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
STRUCTURES: list[dict[str, Any]] = [
    {"guided_regex": "[0-9]{4}-[a-f]{2}"},
    {"guided_choice": ["yes", "no", "perhaps"]},
    {"guided_json": PERSON},
    {"response_format": {"type": "json_object"}},
]
WRONG: list[dict[str, Any]] = [
    {"max_tokens": 0.5},
    {"temperature": -1},
    {"guided_regex": "("},
    {"max_tokens": 1 << 20},
    {"no_such_field": 1},
]
ABORTED = "aborted by its client"
ENDS = {"stop", "length", "tool_calls"}


def random_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Path and body of a request: any prompt, rule, structure and form; one in fifty is wrong."""
    text = " ".join(rng.choices(WORDS, k=rng.choice([1, 4, 12, 60])))
    if rng.random() < 0.4:
        text = SHARED[: rng.choice([40, 120, 240])] + text
    body: dict[str, Any] = {"max_tokens": rng.randint(1, 32), "temperature": rng.choice([0, 0, 0.8, 1.5])}
    body |= rng.choice([{}, {}, {"stop": ["e", "zz"]}, {"n": 2}, {"frequency_penalty": 1.0}, {"seed": 5}, {"top_k": 9}])
    body |= rng.choice([{}, {}, {}, {"speculation": {"max_drafts": rng.choice([0, 1, 7])}}, {"min_tokens": 1}])
    body |= rng.choice(STRUCTURES) if rng.random() < 0.2 else {}
    body |= rng.choice([{}] * 9 + [{"timeout_seconds": 0.05}])
    body |= rng.choice(WRONG) if rng.random() < 0.02 else {}
    body["stream"] = rng.random() < 0.5
    if rng.random() < 0.5:
        return "/v1/completions", {"prompt": text, **body}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body}


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any], patience: float) -> str:
    """Send one request, and leave after `patience` seconds.

    Returns its end: "finished", "error CODE", `ABORTED`, or "lost: ..." where it had none.
    """
    work = _stream if body["stream"] else _whole
    try:
        return await asyncio.wait_for(work(http, path, body), patience)
    except TimeoutError:
        return ABORTED
    except httpx.HTTPError as error:
        return f"lost: {type(error).__name__} {error}"


async def _whole(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    response = await http.post(path, json=body)
    if response.status_code != 200:
        return _refusal(response.status_code, response.content)
    choices = response.json()["choices"]
    whole = len(choices) == body.get("n", 1) and all(choice["finish_reason"] in ENDS for choice in choices)
    return "finished" if whole else "lost: choices without an end"


async def _stream(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    ended: list[int] = []
    error, done = "", False
    async with http.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            return _refusal(response.status_code, await response.aread())
        async for line in _lines(response):
            done = done or line == b"data: [DONE]"
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                error = f"error {event['error']['code']}"
            ended += [choice["index"] for choice in event.get("choices", ()) if choice["finish_reason"] in ENDS]
    if not done:
        return "lost: a stream that broke off"
    if error:
        return error
    return "finished" if sorted(ended) == list(range(body.get("n", 1))) else "lost: choices without exactly one end"


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Lines that end in a newline alone: texts may hold what else Unicode calls an end of line."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line


def _refusal(status: int, content: bytes) -> str:
    try:
        code = json.loads(content)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return f"lost: HTTP {status} without a reason"
    return f"error {code}"
