"""Chat templates: what Hugging Face templates expect, what clients send, and what hostile ones may not do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from overdrive.errors import BadRequest, OverdriveError
from overdrive.text import ChatTemplate

USER = {"role": "user", "content": "hi"}


def render(template: str, messages: list[dict[str, Any]] | None = None, **more: Any) -> str:
    return ChatTemplate({"default": template}, {"bos_token": "<s>"}, "model").render(messages or [USER], **more)


def test_blocks_leave_no_blank_lines() -> None:
    assert (
        render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n") == "hi\n"
    )


def test_json_is_neither_escaped_nor_ascii() -> None:
    assert render("{{ {'a': \"<é'&>\"} | tojson }}") == '{"a": "<é\'&>"}'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'


def test_generation_tag_and_loop_controls_are_understood() -> None:
    loop = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render("{% generation %}" + loop + "{% endgeneration %}") == "01"


def test_date_and_special_tokens_are_there() -> None:
    assert render("{{ bos_token }}{{ strftime_now('%Y') | length }}") == "<s>4"


def test_generation_prompt_is_asked_for_by_default() -> None:
    source = "{% if add_generation_prompt %}go{% endif %}"
    assert (render(source), render(source, add_generation_prompt=False)) == ("go", "")


def test_tools_pass_through_and_absent_tools_are_none() -> None:
    assert render("{{ tools[0].function.name }}", tools=[{"function": {"name": "f"}}]) == "f"
    assert render("{{ tools is none }}{{ documents is none }}", tools=[]) == "TrueTrue"


def test_extra_names_reach_the_template_but_take_no_others_place() -> None:
    assert render("{{ enable_thinking }}", chat_template_kwargs={"enable_thinking": False}) == "False"
    with pytest.raises(BadRequest, match="messages") as caught:
        render("", chat_template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


def test_text_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"


def test_tool_calls_reach_the_template_as_objects_and_results_as_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": [1]})}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "42"}]},
    ]
    source = "{{ messages[1].content }}{{ messages[1].tool_calls[0].function.arguments.x }}{{ messages[2].content }}"
    assert render(source, messages) == "[1]42"


def test_developer_is_a_system_message_where_the_template_knows_no_developer() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{{ messages[0].role }}{# developer #}", messages) == "developer"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": ["text"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "wizard", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ("x", "messages[1]"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages[1].tool_calls[0].function",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]},
            "messages[1].tool_calls[0].function",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]},
            "messages[1].tool_calls[0].function",
        ),
    ],
)
def test_message_that_is_no_text_chat_is_refused_by_its_place(message: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        render("{{ messages }}", [USER, message])
    assert caught.value.param == param


def test_no_messages_are_refused() -> None:
    with pytest.raises(BadRequest, match="at least one"):
        ChatTemplate({"default": ""}, {}, "model").render([])


def test_templates_own_refusal_reaches_the_client() -> None:
    with pytest.raises(BadRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


def test_model_without_template_says_what_to_do() -> None:
    with pytest.raises(BadRequest, match="--chat-template"):
        ChatTemplate({}, {}, "model").render([USER])


def test_invalid_template_is_an_error_at_start() -> None:
    with pytest.raises(OverdriveError, match=r"model .*--chat-template"):
        ChatTemplate({"default": "{% for %}"}, {}, "model")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].clear() }}",
        "{% include 'x' %}",
        "{{ missing.name }}",
        "{{ 1 / 0 }}",
        "{{ 'a' * 99999999999 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{{ 'aaaaaaaaaaaaaaaa' * 1000 }}{% endfor %}",
    ],
)
def test_hostile_or_broken_template_is_a_bad_request(source: str) -> None:
    with pytest.raises(BadRequest, match="chat template failed"):
        render(source)
