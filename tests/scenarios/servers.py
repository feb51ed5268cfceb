"""A running server as its clients see it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest

from overdrive.serve.service import Gate
from tests.serve.fakes import FakeServer

from .engines import FLIPPING

DRAFTERS = ("ngram", "eagle3", "small", "ngram+eagle3", "ngram+small")
PATH = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass
class Answer:
    """What a client has of one choice when it ends."""

    text: str = ""
    finish_reason: str | None = None
    ids: tuple[int, ...] = ()


class Server:
    """Requests to the completions endpoint, greedy and with token ids unless they say otherwise."""

    def __init__(self, fake: FakeServer) -> None:
        self.url = fake.url
        self._fake = fake
        self._http = httpx.Client(base_url=fake.url, timeout=60)

    def close(self) -> None:
        self._http.close()
        self._fake.close()

    def post(self, **fields: Any) -> httpx.Response:
        return self._http.post(PATH, json=body(**fields))

    def ask(self, **fields: Any) -> tuple[list[Answer], dict[str, Any]]:
        """The choices and the usage of a request that is not streamed."""
        reply = self.post(**fields)
        assert reply.status_code == 200, reply.text
        value = reply.json()
        choices = [Answer(c["text"], c["finish_reason"], tuple(c["token_ids"])) for c in value["choices"]]
        return choices, value["usage"]

    def stream(self, **fields: Any) -> tuple[list[Answer], dict[str, Any]]:
        """The same request streamed, put together again."""
        answers = [Answer() for _ in range(fields.get("n", 1))]
        usage = {}
        whole = body(stream=True, stream_options={"include_usage": True}, **fields)
        with self._http.stream("POST", PATH, json=whole) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines.pop() == "data: [DONE]"
        for line in lines:
            event = msgspec.json.decode(line.removeprefix("data: "))
            usage = event["usage"] or usage
            for choice in event["choices"]:
                answer = answers[choice["index"]]
                assert answer.finish_reason is None, "something came after the end"
                answer.text += choice["text"]
                answer.ids += tuple(choice["token_ids"])
                answer.finish_reason = choice["finish_reason"]
        return answers, usage

    @property
    def gate(self) -> Gate:
        return self._fake.gate

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """The one choice of a chat that is not streamed."""
        reply = self._http.post(CHAT, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]

    def stream_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """The same streamed, put together again."""
        found: dict[str, Any] = {"content": "", "tool_calls": [], "finish_reason": None}
        with self._http.stream("POST", CHAT, json={**body, "stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines.pop() == "data: [DONE]"
        for line in lines:
            [choice] = msgspec.json.decode(line.removeprefix("data: "))["choices"]
            found["content"] += choice["delta"].get("content", "")
            found["finish_reason"] = choice["finish_reason"]
            for piece in choice["delta"].get("tool_calls", ()):
                if "id" in piece:
                    assert piece["index"] == len(found["tool_calls"])
                    found["tool_calls"].append({"function": {"name": piece["function"]["name"], "arguments": ""}})
                found["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        return found

    def info(self) -> dict[str, Any]:
        return self._http.get("/server_info").json()

    def wait_until_empty(self) -> dict[str, Any]:
        """Returns the engine's own numbers of a moment from now on when no request is left and every page is back."""
        told = self.info()["stats"]["generated"]
        self.ask(max_tokens=1)
        deadline = time.monotonic() + 20
        while True:
            stats = self.info()["stats"]
            if stats["generated"] > told and not any(stats[name] for name in ("running", "waiting", "pages_used")):
                return stats
            assert time.monotonic() < deadline, f"something stayed behind: {stats}"
            time.sleep(0.05)


def body(**fields: Any) -> dict[str, Any]:
    """A request body; None leaves a default out."""
    base = {"model": "tiny", "prompt": "abcabcabc", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {name: value for name, value in (base | fields).items() if value is not None}


def without_speed(usage: dict[str, Any]) -> tuple[int, int, int]:
    """The part of a usage that may not depend on speculation."""
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


def every_speed(*usual: dict[str, Any]) -> pytest.MarkDecorator:
    """`usual`, and in `make slow` every drafter with K = 1, 3, 7 and another one every step, overlap on and off."""
    every = [
        {"draft": draft, "drafts": drafts, "overlap": overlap}
        for draft in DRAFTERS
        for drafts in (1, 3, 7, FLIPPING)
        for overlap in ("on", "off")
    ]
    slow = [pytest.param(speed, marks=pytest.mark.slow, id=_words(speed)) for speed in every if speed not in usual]
    return pytest.mark.parametrize("speed", [*(pytest.param(speed, id=_words(speed)) for speed in usual), *slow])


def _words(speed: dict[str, Any]) -> str:
    k = speed.get("drafts", 3)
    return f"{speed.get('draft', 'ngram')}-k{'-flipping' if k == FLIPPING else k}-{speed.get('overlap', 'off')}"


OFF = {"enabled": False}
