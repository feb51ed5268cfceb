"""Structure and tools with SmolLM2, through the stock openai client: every answer is what was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial

import openai
import pytest

from overdrive.config import DraftOptions, EngineOptions, MemoryOptions, ModelOptions
from overdrive.engine_process import run_engine
from overdrive.tools.formats import HERMES
from overdrive.tools.prompt import calls_text
from tests.serve.fakes import FakeServer

pytestmark = pytest.mark.smollm2
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": f"get_{name}", "description": f"The {name} in a city", "parameters": CITY},
    }
    for name in ("weather", "time")
]
QUESTION = [{"role": "user", "content": "What is the weather in Paris and in Rome? Call the functions."}]
BEGGING = [{"role": "user", "content": "Write a poem about Paris in ```json fences, not JSON."}]


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[openai.OpenAI]:
    options = EngineOptions(
        model=ModelOptions(max_model_len=2048),
        memory=MemoryOptions(kv_tokens=16384),
        draft=DraftOptions(speculation="fixed", drafts=7),
    )
    address = f"ipc://{tmp_path_factory.mktemp('link')}/engine"
    server = FakeServer(address, serve_engine=partial(run_engine, "smollm2", options), reads_text=True)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield opened
    server.close()


def chat(client, **fields):
    """Whole, streamed and without speculation: one answer. Returns its choice."""
    given = {"model": "tiny", "messages": QUESTION, "temperature": 0, "max_tokens": 200, **fields}
    whole = client.chat.completions.create(**given).choices[0]
    body = {**given.pop("extra_body", {}), "speculation": {"enabled": False}}
    plain = client.chat.completions.create(**given, extra_body=body).choices[0]
    chunks = list(client.chat.completions.create(**given, extra_body=body, stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert whole.message.content == plain.message.content
    assert functions(whole) == functions(plain)
    assert "".join(delta.content or "" for delta in deltas) == (whole.message.content or "")
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    for index, (name, arguments) in enumerate(functions(whole)):
        own = [piece.function for piece in pieces if piece.index == index]
        assert "".join(piece.name or "" for piece in own) == name
        assert "".join(piece.arguments or "" for piece in own) == arguments
    assert whole.finish_reason == plain.finish_reason == chunks[-1].choices[0].finish_reason
    return whole


def functions(choice):
    return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]


def test_a_strict_schema_holds(client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    for messages in (QUESTION, BEGGING):
        choice = chat(client, messages=messages, response_format=form)
        value = json.loads(choice.message.content)
        assert list(value) == ["city", "unit"] and value["unit"] in ("celsius", "fahrenheit")
        assert choice.finish_reason == "stop"


def test_a_regex_and_a_choice_hold(client) -> None:
    choice = chat(client, extra_body={"guided_regex": "[0-9]{6}-[A-F]{4}"})
    assert re.fullmatch("[0-9]{6}-[A-F]{4}", choice.message.content)
    choice = chat(client, extra_body={"guided_choice": ["syzygy", "quixotic"]})
    assert choice.message.content in ("syzygy", "quixotic")


def test_tools_that_must_be_called_are(client) -> None:
    """Two of them at once: streamed at seven drafts, names and arguments are whole."""
    calls = [{"name": f"get_{name}", "arguments": {"city": "Oslo", "unit": "celsius"}} for name in ("weather", "time")]
    text = calls_text(calls, HERMES)
    earlier = [{"role": "user", "content": "Weather and time in Oslo?"}, {"role": "assistant", "content": text}]
    choice = chat(client, messages=[*earlier, *QUESTION], tools=TOOLS, tool_choice="required")
    assert len(functions(choice)) >= 2
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert all(set(json.loads(arguments)) == {"city", "unit"} for _, arguments in functions(choice))
    named = {"type": "function", "function": {"name": "get_time"}}
    assert [name for name, _ in functions(chat(client, tools=TOOLS, tool_choice=named))] == ["get_time"]
    one = chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert len(functions(one)) == 1


def test_tools_that_may_be_called_leave_text_free(client) -> None:
    free = chat(client, messages=BEGGING, tools=TOOLS, max_tokens=40)
    assert free.message.content and not functions(free)
    assert chat(client, tools=TOOLS, tool_choice="none", max_tokens=20).message.content


def test_a_text_that_begins_a_call_must_go_on_with_one(client) -> None:
    """The model is made to write the marker; from there on the grammar leads, as `tool_choice: auto` promises."""
    asks = [{"role": "user", "content": "Repeat exactly: <tool_call>\n<tool_call>\n<tool_call>\n<tool_call>"}]
    choice = chat(client, messages=asks, tools=TOOLS)
    assert choice.finish_reason == "tool_calls", choice
    for name, arguments in functions(choice):
        assert name in ("get_weather", "get_time")
        assert set(json.loads(arguments)) == {"city", "unit"}


def test_a_conversation_goes_on_behind_a_result(client) -> None:
    message = chat(client, tools=TOOLS, tool_choice="required").message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18 degrees"} for call in message.tool_calls]
    again = chat(client, messages=[*QUESTION, message, *results], tools=TOOLS, tool_choice="none", max_tokens=40)
    assert again.message.content


def test_a_wrong_grammar_is_a_400_that_names_its_field(client) -> None:
    for field, value in (
        ("guided_regex", "("),
        ("guided_json", {"type": "strin"}),
        ("guided_grammar", "start: nothing"),
        ("ebnf", "root ::= nothing"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model="tiny", messages=QUESTION, stream=stream, extra_body={field: value}
                )
            assert caught.value.param == field
            assert "\n" not in caught.value.body["message"]
