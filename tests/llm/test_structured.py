"""Structure and tools in a Python program: what the HTTP endpoints take, and the same answers."""

from __future__ import annotations

import json
import re

import pytest

from overdrive.errors import BadRequest

FLAG = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "set", "parameters": FLAG}}]
CHAT = [{"role": "user", "content": "On!"}]


def test_every_prompt_may_have_a_structure_of_its_own(llm):
    each = [
        {"guided_regex": "[0-9]{6}-[A-F]{4}", "ignore_eos": True},
        {"guided_choice": ["yes", "no"]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": FLAG}}},
        {"guided_grammar": 'root ::= "a" ("b" | "c")'},
        {"max_tokens": 5},
    ]
    number, word, flag, letters, free = llm.generate(["x"] * 5, each=each, temperature=1, seed=3)
    assert re.fullmatch("[0-9]{6}-[A-F]{4}", number.text)
    assert word.text in ("yes", "no")
    assert set(json.loads(flag.text)) == {"on"}
    assert letters.text in ("ab", "ac")
    assert [one.finish_reason for one in (number, word, flag, letters, free)] == ["stop"] * 4 + ["length"]


def test_a_chat_calls_tools(llm):
    [answer] = llm.chat(CHAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=0)
    [call] = answer.tool_calls
    assert (call.name, set(json.loads(call.arguments)), answer.text) == ("set", {"on"}, "")
    assert answer.finish_reason == "tool_calls"
    [free] = llm.chat(CHAT, tools=TOOLS, tool_choice="none", max_tokens=5, temperature=0)
    assert free.tool_calls == ()
    assert "".join(llm.stream_chat(CHAT, guided_choice=["yes", "no"])) in ("yes", "no")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"guided_regex": "a", "regex": "a"}, "regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"enum": [object()]}}, "guided_json"),
        ({"tools": TOOLS}, "tools"),
        ({"tool_choice": "required"}, "tools"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(llm, given, param):
    with pytest.raises(BadRequest) as caught:
        llm.generate("x", max_tokens=1, **given)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "given",
    [
        {"guided_regex": r"[^\s\S]"},
        {"guided_grammar": "start: start"},
        {"guided_json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
        {"guided_json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
    ],
    ids=str,
)
def test_what_no_text_follows_is_a_bad_request(llm, given):
    with pytest.raises(BadRequest, match="no text follows it"):
        llm.generate("x", max_tokens=9, **given)


def test_what_cannot_be_compiled_is_a_bad_request(llm):
    with pytest.raises(BadRequest, match="regular expression"):
        llm.generate("x", max_tokens=1, guided_regex="(")
    assert llm.generate("x", max_tokens=1, guided_regex="a")[0].text == "a"
