"""Many clients at once: none sees another's text, and nothing of those that leave stays behind."""

from __future__ import annotations

import asyncio
import random

import httpx
import msgspec

from tests.patience import PATIENCE, wait_until

from .fakes import INFO, speak

CLIENTS = 40


def echo(submit):
    """The prompt's own text, so that every client knows what to expect."""
    return speak(submit, text=bytes(submit.prompt[1:]).decode() * 4)


async def client(http: httpx.AsyncClient, number: int, leaves: bool) -> str:
    """Reads a stream to its end or, leaving early, a part of it."""
    body = {"model": "tiny", "prompt": f"<{number}>", "stream": True}
    text = ""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if leaves and text:
                break
            if line.startswith("data: {"):
                text += msgspec.json.decode(line[6:])["choices"][0]["text"]
    return text


def test_a_crowd_gets_its_own_answers_and_leaves_nothing_behind(make_server):
    server = make_server(info=msgspec.structs.replace(INFO, max_rows=32, max_queue=64))
    server.engine.script = echo
    leaves = [random.Random(number).random() < 0.4 for number in range(CLIENTS)]

    async def crowd() -> list[str]:
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as http:
            return await asyncio.gather(*(client(http, number, leaves[number]) for number in range(CLIENTS)))

    texts = asyncio.run(crowd())
    for number, text in enumerate(texts):
        whole = f"<{number}>" * 4
        assert whole.startswith(text) if leaves[number] else text == whole
    wait_until(lambda: not server.client.active, "a request outlived its client")
    assert len(server.engine.submits) == CLIENTS
