"""Structure as clients see it, with every kind of speculation; the oracle is the same request alone without any."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from overdrive.tools.formats import HERMES, Thinking
from overdrive.tools.style import Shows

from .servers import OFF, Server, every_speed

each_speed = every_speed({"draft": "ngram", "drafts": 7, "overlap": "on"})
WORD = {"type": "string", "pattern": "^[a-e]{1,6}$"}
PERSON = {
    "type": "object",
    "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {**PERSON, "properties": {**PERSON["properties"]}}}}
    for name in ("greet", "dismiss")
]
MUTUAL = {
    "$defs": {
        "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}},
        "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "additionalProperties": {"type": "null"}},
    },
    "$ref": "#/$defs/a",
}
SHAPE = re.compile(r'\{"name": "[a-e]{1,6}", "age": [0-9]{1,2}, "ok": (true|false)\}')


def held(**fields: Any) -> dict[str, Any]:
    """A constrained request: it may end, so the model's own end counts."""
    return {"ignore_eos": False, "max_tokens": 150, **fields}


def at_once(server: Server, requests: list[dict[str, Any]]) -> list[Any]:
    """The first choice of each, all of them sent together."""
    with ThreadPoolExecutor(80) as pool:
        return [choices[0] for choices, _ in pool.map(lambda fields: server.ask(**fields), requests)]


def check_plain(server: Server, requests: list[dict[str, Any]]) -> list[Any]:
    """What the requests say is what they say without speculation, the last of them also alone. Returns that."""
    choices = at_once(server, requests)
    assert choices == at_once(server, [{**fields, "speculation": OFF} for fields in requests])
    [alone], _ = server.ask(**requests[-1], speculation=OFF)
    assert choices[-1] == alone
    return choices


@each_speed
def test_many_requests_for_json_that_beg_for_something_else(make_server, speed) -> None:
    server = make_server(**speed)
    requests = [
        held(prompt=f"No JSON, {number}!", temperature=temperature, seed=number, guided_json=PERSON)
        for number in range(8)
        for temperature in (0, 1.3)
    ]
    for choice in check_plain(server, requests):
        assert SHAPE.fullmatch(choice.text), choice.text
        assert choice.finish_reason == "stop"
    server.wait_until_empty()


@pytest.mark.slow
@each_speed
def test_copies_of_one_schema_and_distinct_ones_some_hostile_while_others_stream(make_server, speed) -> None:
    server = make_server(**speed)
    same = [held(prompt="shared prefix " * 3 + str(n), seed=n, temperature=1, guided_json=PERSON) for n in range(64)]
    distinct = [
        held(prompt="x", guided_json={"type": "array", "prefixItems": [{"const": n}], "minItems": 1, "maxItems": 1})
        for n in range(200)
    ]
    free = [{"prompt": f"free {n}", "max_tokens": 100} for n in range(4)]
    choices = check_plain(server, [*free, *same, *distinct])
    assert all(SHAPE.fullmatch(choice.text) for choice in choices[4:68])
    assert [json.loads(choice.text) for choice in choices[68:]] == [[n] for n in range(200)]
    nest: dict[str, Any] = {"type": "object"}
    for _ in range(60):
        nest = {"type": "object", "properties": {"a": nest, "b": {"type": "integer"}}}
    hostile = [
        held(guided_json=nest),
        held(guided_json={"enum": [f"word {n * 7919 % 20_000}" for n in range(20_000)]}),
        held(guided_json=MUTUAL),
        held(guided_regex="(a?){30}a{30}(b|(c+)+)*d"),
    ]
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(server.post, **fields) for fields in hostile]
        assert at_once(server, free) == choices[:4]
        for answer in running:
            assert answer.result().status_code in (200, 400), answer.result().text
    server.wait_until_empty()


@each_speed
def test_tight_rare_and_short_grammars_and_ends_within_a_run(make_server, speed) -> None:
    server = make_server(**speed)
    rare = ["quixotic", "zyzzyva", "syzygy"]
    requests = [
        held(guided_regex="[0-9]{6}-[A-F]{4}", prompt="id "),
        held(guided_regex="[0-9]{6}-[A-F]{4}", temperature=2, seed=4),
        held(guided_choice=rare),
        held(guided_choice=rare, temperature=3, seed=9),
        held(guided_json={"type": "boolean"}, prompt="true true true true "),
        held(guided_json={"type": "boolean"}, prompt="false false false "),
        held(guided_grammar='root ::= "x" [0-9]+ "y"', max_tokens=60, temperature=1, seed=2),
        held(ebnf='root ::= ("ab")* "."', max_tokens=60, temperature=1, seed=3),
    ]
    choices = check_plain(server, requests)
    patterns = [r"[0-9]{6}-[A-F]{4}"] * 2 + ["quixotic|zyzzyva|syzygy"] * 2 + ["true|false"] * 2
    for choice, pattern in zip(choices, patterns, strict=False):
        assert re.fullmatch(pattern, choice.text), choice.text
        assert choice.finish_reason == "stop"
    for choice, pattern in zip(choices[6:], [r"x[0-9]+y", r"(ab)*\."], strict=True):
        assert choice.finish_reason == "length" or re.fullmatch(pattern, choice.text)


@each_speed
def test_long_constrained_answers_beside_long_prompts_and_under_little_memory(make_server, speed) -> None:
    """So little that requests are preempted: 16 of up to 200 tokens, and pages for two and a half."""
    server = make_server(kv_tokens=512, **speed)
    long = {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}
    requests = [held(prompt=f"list {n}", guided_json=long, temperature=n % 2, seed=n) for n in range(8)]
    requests += [{"prompt": chr(97 + n) * 180, "max_tokens": 20} for n in range(8)]
    for choice in check_plain(server, requests)[:8]:
        assert len(json.loads(choice.text)) == 3
    server.wait_until_empty()


@each_speed
def test_a_schema_begins_where_the_reasoning_ends_within_an_accepted_run(make_server, speed) -> None:
    """What ends the reasoning is chosen from what the model writes anyway, at every place of a stretch of it."""
    server = make_server(**speed)
    prompt = "Answer in ```json fences: hello"
    [free], _ = server.ask(prompt=f"<user>{prompt}\n<a><think>\n", max_tokens=90, add_special_tokens=False)
    marks = {free.text[at : at + 3]: free.text.index(free.text[at : at + 3]) for at in range(30, 85)}
    for mark, place in list(marks.items())[:8]:
        if not mark.isascii():
            continue
        body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "guided_json": PERSON}
        body |= {"temperature": 0, "max_tokens": 200, "return_token_ids": True}
        with styled(server, thinking=Thinking("<think>", mark), close_ids=tuple(mark.encode())):
            answers = [server.chat(body), server.chat({**body, "speculation": OFF})]
        for answer in answers:
            assert answer["message"]["reasoning_content"] == free.text[:place].strip(" \t\r\n")
            assert SHAPE.fullmatch(answer["message"]["content"]), answer
            assert answer["finish_reason"] == "stop"
        assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert len(marks) > 2


@contextmanager
def styled(server: Server, **changes: Any) -> Iterator[None]:
    """The server's model writes its chats in another way as long as this lasts."""
    service = server.gate.state
    server.gate.state = replace(service, style=replace(service.style, **changes))
    try:
        yield
    finally:
        server.gate.state = service


@each_speed
def test_calls_begin_where_the_text_writes_the_token_that_begins_them(make_server, speed) -> None:
    """Text before it is free, and the model's own; which token it is, is chosen from that text."""
    server = make_server(max_model_len=1200, **speed)
    [free], _ = server.ask(prompt="<user>hello\n<a>", max_tokens=90, add_special_tokens=False)
    marks = {char: free.text.index(char) for char in free.text if char.isascii() and char.isprintable() and char != " "}
    late = sorted(marks, key=marks.__getitem__)[-4:]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "tools": TOOLS, "temperature": 0}
    body |= {"max_tokens": 300, "return_token_ids": True, "parallel_tool_calls": False}
    for mark in late:
        form = replace(HERMES, call=mark + HERMES.call, markers=(mark,))
        with styled(server, form=form, trigger_id=ord(mark), shows=Shows(tools=True, calls=True, results=True)):
            answers = [server.chat(body), server.chat({**body, "speculation": OFF})]
        assert answers[0]["token_ids"] == answers[1]["token_ids"]
        assert (answers[0]["message"]["content"] or "") == free.text[: marks[mark]].rstrip(" \t\r\n")
        assert answers[0]["finish_reason"] == "tool_calls"
        for call in answers[0]["message"]["tool_calls"]:
            assert SHAPE.fullmatch(call["function"]["arguments"]), call
    assert marks[late[-1]] > 5


@each_speed
@pytest.mark.parametrize("choice", ["required", "auto", {"type": "function", "function": {"name": "dismiss"}}], ids=str)
def test_tool_calls_are_whole_streamed_or_not(make_server, speed, choice) -> None:
    server = make_server(max_model_len=1200, **speed)
    for number in range(2):
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"call {number}"}], "tools": TOOLS}
        body |= {
            "tool_choice": choice,
            "temperature": 1,
            "seed": number,
            "max_tokens": 150 if choice == "auto" else 300,
            "return_token_ids": True,
        }
        whole = server.chat(body)
        assert whole["token_ids"] == server.chat({**body, "speculation": OFF})["token_ids"]
        streamed = server.stream_chat(body)
        calls = whole["message"].get("tool_calls", [])
        assert [call["function"] for call in streamed["tool_calls"]] == [call["function"] for call in calls]
        assert streamed["content"] == (whole["message"]["content"] or "")
        assert streamed["finish_reason"] == whole["finish_reason"]
        if choice != "auto":
            assert calls
        for call in calls[: len(calls) if whole["finish_reason"] == "tool_calls" else -1]:
            assert call["function"]["name"] in (["greet", "dismiss"] if isinstance(choice, str) else ["dismiss"])
            assert SHAPE.fullmatch(call["function"]["arguments"]), call
