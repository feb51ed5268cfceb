"""What clients and operators see of speculation, and that clients who leave take nobody with them."""

from __future__ import annotations

import asyncio
import random

import httpx
import msgspec
import pytest

from .engines import FLIPPING
from .servers import DRAFTERS, OFF, PATH, Server, body, without_speed

TIGHT = {"kv_tokens": 512, "max_rows": 12}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"speculation": {"max_drafts": -1}}, "speculation.max_drafts"),
        ({"speculation": {"draft": "eagle"}}, "speculation.draft"),
        ({"suffix": "x"}, "suffix"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"logit_bias": {"259": 1}}, "logit_bias"),
        ({"max_tokens": 1000}, "max_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_before_the_stream(make_server, fields, param) -> None:
    server = make_server()
    reply = server.post(stream=True, **fields)
    assert 400 <= reply.status_code < 500
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("options", "drafter", "drafts"),
    [({}, "ngram", 3), ({"drafts": 0}, "ngram", 0), ({"draft": "none"}, "none", 0), ({"drafts": 15}, "ngram", 15)],
    ids=str,
)
def test_server_info_shows_the_drafter_and_whether_it_drafts(make_server, options, drafter, drafts) -> None:
    server: Server = make_server(**options)
    server.ask(max_tokens=40)
    stats, info = server.wait_until_empty(), server.info()["engine"]
    assert (info["drafter"], info["drafts"]) == (drafter, drafts)
    assert len(stats["plans"]) == drafts + 1
    drafted = [entry for entry in stats["drafts"] if entry["rounds"]]
    assert [(entry["source"], entry["key"]) for entry in drafted] == [(drafter, "greedy")] * (drafts > 0)


SPEEDS = [
    ("ngram", 7),
    *(pytest.param(name, k, marks=pytest.mark.slow) for name in ("small", "ngram+small") for k in (1, 7, FLIPPING)),
]


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize(("draft", "drafts"), SPEEDS)
def test_who_opts_out_is_not_drafted_and_nobody_else_notices(make_server, draft, drafts, overlap) -> None:
    """Eight requests at once, every second without speculation."""
    server: Server = make_server(draft=draft, drafts=drafts, overlap=overlap)
    bodies = [body(prompt=f"{i}abcabc", max_tokens=60, speculation=OFF if i % 2 else None) for i in range(8)]
    solo = [server.ask(**one) for one in bodies]

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            return await asyncio.gather(*(http.post(PATH, json=one) for one in bodies))

    for number, reply in enumerate(asyncio.run(together())):
        value = reply.json()
        [choice], usage = solo[number]
        assert value["choices"][0]["text"] == choice.text
        assert without_speed(value["usage"]) == without_speed(usage)
        details = value["usage"]["completion_tokens_details"]
        drafted = details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
        assert (drafted == 0) if number % 2 else (details["accepted_prediction_tokens"] > 0)


def test_the_cap_of_a_request_bounds_its_drafts(make_server) -> None:
    """With at most one draft per step at most half of the tokens come from drafts."""
    server: Server = make_server(drafts=7)
    texts = set()
    for cap in (1, 3, 64):
        [choice], usage = server.ask(max_tokens=100, speculation={"max_drafts": cap})
        accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
        assert 0 < accepted <= 100 * cap / (cap + 1)
        texts.add(choice.text)
    assert len(texts) == 1


CROWDS = [TIGHT, {**TIGHT, "overlap": "on", "drafts": 7}]
LATER = [{**TIGHT, "draft": draft, "drafts": k, "overlap": "on"} for draft in DRAFTERS for k in (3, FLIPPING)]


@pytest.mark.parametrize("options", [*CROWDS, *(pytest.param(one, marks=pytest.mark.slow) for one in LATER)], ids=str)
def test_a_crowd_that_leaves_takes_nobody_with_it(make_server, options) -> None:
    """Memory for half of them; some close at once, some while they read; who stays gets its solo text."""
    server: Server = make_server(**options)
    rng = random.Random(5)
    prompts = [f"{i % 5} of a kind " * 2 for i in range(40)]
    solo = {prompt: server.ask(prompt=prompt, max_tokens=48)[0][0].text for prompt in set(prompts)}
    patience = [rng.choice([0, 1, 4, 1000, 1000]) for _ in prompts]

    async def read(http: httpx.AsyncClient, prompt: str, events: int) -> str:
        text = ""
        sent = body(prompt=prompt, max_tokens=48, stream=True)
        async with http.stream("POST", PATH, json=sent) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += msgspec.json.decode(line[6:])["choices"][0]["text"]
                    events -= 1
                if events < 0:
                    break
        return text

    async def crowd() -> list[str]:
        limits = httpx.Limits(max_connections=len(prompts))
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            return await asyncio.gather(*(read(http, *one) for one in zip(prompts, patience, strict=True)))

    for prompt, events, text in zip(prompts, patience, asyncio.run(crowd()), strict=True):
        assert text == solo[prompt] if events == 1000 else solo[prompt].startswith(text)
    server.wait_until_empty()
    assert server.ask(prompt=prompts[0], max_tokens=48)[0][0].text == solo[prompts[0]]


def test_a_free_row_is_served_where_nobody_may_wait(make_server) -> None:
    """--max-queue 0: as many requests as rows at once, and all of them run."""
    server: Server = make_server(max_queue=0, max_rows=4)
    choices, _ = server.ask(n=4, max_tokens=8, temperature=1, seed=1)
    assert len({choice.text for choice in choices}) == 4
    refused = server.post(n=5, max_tokens=8)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


def test_a_second_turn_reports_what_it_found_with_and_without_speculation(make_server) -> None:
    cached = {}
    for drafts in (0, 7):
        server: Server = make_server(drafts=drafts, draft="ngram", max_queue=500)
        said = [256, *b"a first turn of some length"]
        found = []
        for _ in range(3):
            [choice], usage = server.ask(prompt=said, max_tokens=21)
            found.append((usage["prompt_tokens_details"]["cached_tokens"], choice.ids))
            said = [*said, *choice.ids, *b" and?"]
        cached[drafts] = found
    assert cached[0] == cached[7]
    assert cached[0][2][0] >= 60
