"""Structure, tools and reasoning at the endpoint, through the stock openai client and a scripted engine."""

from __future__ import annotations

import json

import httpx
import msgspec
import openai
import pytest

from overdrive.tools.formats import HERMES
from overdrive.tools.prompt import calls_text
from overdrive.types import FinishReason, GrammarSpec
from overdrive.wire import Tokens
from tests.patience import PATIENCE

from .fakes import INFO, TEMPLATE, FakeServer, speak

MESSAGES = [{"role": "user", "content": "hi"}]
ASK = {"model": "tiny", "messages": MESSAGES, "max_tokens": 300}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"says {name}", "parameters": PARAMETERS}}
    for name in ("weather", "clock")
]
ROME = {"name": "weather", "arguments": {"city": "Rome"}}
OSLO = {"name": "clock", "arguments": {"city": "Oslø"}}
INFO = msgspec.structs.replace(INFO, max_model_len=2000)


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    """A server whose model reasons of its own accord, and knows no tools."""
    template = TEMPLATE + "{% if enable_thinking is false %}<think></think>{% endif %}"
    server = FakeServer(f"ipc://{tmp_path_factory.mktemp('link')}/engine", info=INFO, template=template)
    yield server
    server.close()


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    server = FakeServer(f"ipc://{tmp_path_factory.mktemp('link')}/engine", info=INFO)
    yield server
    server.close()


def client_of(server):
    server.engine.reset()
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


@pytest.fixture
def asked(roomy):
    """Ask and get the answer, and what the engine was asked."""
    with client_of(roomy) as client:

        def ask(text="x", **fields):
            roomy.engine.script = lambda submit: speak(submit, text=text)
            answer = client.chat.completions.create(**{**ASK, **fields})
            return answer, roomy.engine.submits[-1]

        yield ask


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            "json_schema",
            SCHEMA,
        ),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"guided_choice": ["é", "b"]}, "choice", ["é", "b"]),
        ({"structured_outputs": {"choice": ["b"]}}, "choice", ["b"]),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"guided_grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "gbnf", 'root ::= "a"'),
        ({"ebnf": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"guided_regex": "a+", "guided_decoding_backend": "xgrammar"}, "regex", "a+"),
    ],
)
def test_every_name_for_a_structure_reaches_the_engine(http, server, fields, kind, source):
    for path, prompt in (("chat/completions", {"messages": MESSAGES}), ("completions", {"prompt": "hi"})):
        answer = http.post(f"/v1/{path}", json={"model": "tiny", "max_tokens": 5, **prompt, **fields})
        assert answer.status_code == 200, answer.text
        spec = server.engine.submits[-1].params.grammar
        assert (spec.kind, spec.after) == (kind, ())
        assert (spec.source if isinstance(source, str) else json.loads(spec.source)) == source


def test_free_text_has_no_grammar(http, server):
    for form in (None, {"type": "text"}):
        http.post("/v1/chat/completions", json={**ASK, "response_format": form, "max_tokens": 5})
        assert server.engine.submits[-1].params.grammar is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"response_format": {"type": "json_object"}}, {"tools": TOOLS}, {"ebnf": "x"}])
def test_what_cannot_be_compiled_is_a_400_that_names_its_field(roomy, fields, stream):
    fault = {"finish": FinishReason.ERROR, "error": "unsupported keyword: not", "status": 400}
    roomy.engine.script = lambda submit: iter([Tokens(submit.id, **fault)])
    answer = httpx.post(f"{roomy.url}/v1/chat/completions", json={**ASK, **fields, "stream": stream})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["message"]) == (next(iter(fields)), "unsupported keyword: not")


def test_what_was_not_compiled_in_time_is_a_503_of_its_own(roomy):
    fault = {"finish": FinishReason.ERROR, "error": "too many", "status": 503, "code": "grammar_not_compiled"}
    roomy.engine.script = lambda submit: iter([Tokens(submit.id, **fault)])
    answer = httpx.post(f"{roomy.url}/v1/chat/completions", json={**ASK, "ebnf": "x"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (503, "grammar_not_compiled", None)
    assert int(answer.headers["retry-after"]) > 0


def test_a_grammar_that_cannot_be_followed_further_ends_the_stream_with_its_own_error(roomy):
    """Not with the server's: the event has the type and the field of the 400 that it would have been before."""

    def script(submit):
        yield Tokens(submit.id, [72])
        yield Tokens(submit.id, finish=FinishReason.ERROR, error="more than can be followed", status=400)

    roomy.engine.script = script
    answer = httpx.post(f"{roomy.url}/v1/chat/completions", json={**ASK, "ebnf": "x", "stream": True})
    *_, last, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert (answer.status_code, done) == (200, "[DONE]")
    error = json.loads(last)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "ebnf")
    assert error["message"] == "more than can be followed"


def test_calls_of_a_whole_answer(asked):
    answer, _ = asked(text=calls_text([ROME, OSLO], HERMES), tools=TOOLS)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls = choice.message.tool_calls
    assert [(c.type, c.function.name) for c in calls] == [("function", "weather"), ("function", "clock")]
    assert [json.loads(c.function.arguments)["city"] for c in calls] == ["Rome", "Oslø"]
    assert all(c.id.startswith("call_") for c in calls)
    assert calls[0].id != calls[1].id


def test_text_before_calls_stays_content(asked):
    answer, _ = asked(text="Let me see.\n" + calls_text([ROME], HERMES), tools=TOOLS)
    assert answer.choices[0].message.content == "Let me see."
    assert len(answer.choices[0].message.tool_calls) == 1
    answer, _ = asked(text="Nothing to call.", tools=TOOLS)
    assert answer.choices[0].message.tool_calls is None
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Nothing to call.", "stop")


@pytest.mark.parametrize("runs", [(1,), (3, 2), (7,), (500,)])
def test_streamed_calls_put_together_are_those_of_the_whole_answer(roomy, runs):
    text = "I look.\n" + calls_text([ROME, OSLO], HERMES)
    with client_of(roomy) as client:
        roomy.engine.script = lambda submit: speak(submit, text=text, runs=runs)
        fields = {**ASK, "tools": TOOLS, "n": 2}
        whole = client.chat.completions.create(**fields)
        chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    for expected in whole.choices:
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == expected.index]
        assert all(choice.delta.model_dump(exclude_none=True) or choice.finish_reason for choice in own), (
            "no idle words"
        )
        pieces = [piece for choice in own for piece in choice.delta.tool_calls or ()]
        heads = [piece for piece in pieces if piece.id]
        assert [(h.index, h.type, h.function.name, h.function.arguments) for h in heads] == [
            (0, "function", "weather", ""),
            (1, "function", "clock", ""),
        ]
        for head, call in zip(heads, expected.message.tool_calls, strict=True):
            rest = [piece for piece in pieces if piece.index == head.index and not piece.id]
            assert "".join(piece.function.arguments for piece in rest) == call.function.arguments
            assert all(piece.function.name is None and piece.type is None for piece in rest)
        assert "".join(choice.delta.content or "" for choice in own) == expected.message.content == "I look."
        assert [choice.finish_reason for choice in own if choice.finish_reason] == ["tool_calls"]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_clients_own_accumulation_gives_the_same_calls(roomy):
    with client_of(roomy) as client:
        roomy.engine.script = lambda submit: speak(submit, text=calls_text([ROME, OSLO], HERMES), runs=(5, 1))
        with client.chat.completions.stream(**ASK, tools=TOOLS) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert [(c.function.name, json.loads(c.function.arguments)) for c in final.message.tool_calls] == [
        (call["name"], call["arguments"]) for call in (ROME, OSLO)
    ]
    assert final.finish_reason == "tool_calls"


def test_a_call_that_was_cut_off_is_no_finished_call(asked):
    text = calls_text([ROME], HERMES)
    answer, _ = asked(text=text, tools=TOOLS, max_tokens=len(text) - 20)
    assert answer.choices[0].finish_reason == "length"
    answer, _ = asked(text=text, tools=TOOLS, stop="Ro")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"city": "'


def test_the_choice_decides_what_may_be_called(asked):
    named = {"type": "function", "function": {"name": "clock"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for choice, callable, free in (
        (None, ("weather", "clock"), True),
        ("auto", ("weather", "clock"), True),
        ("required", ("weather", "clock"), False),
        (named, ("clock",), False),
        (allowed, ("clock",), False),
    ):
        _, submit = asked(tools=TOOLS, **({"tool_choice": choice} if choice else {}))
        spec = submit.params.grammar
        assert spec.kind == "lark"
        assert [name for name in ("weather", "clock") if f'"{name}' in spec.source] == list(callable)
        assert ("TEXT" in spec.source) == free
        prompt = bytes(token for token in submit.prompt if token < 256).decode()
        assert "says weather" in prompt and "says clock" in prompt
    _, submit = asked(tools=TOOLS, parallel_tool_calls=False)
    assert "more*" not in submit.params.grammar.source
    _, submit = asked(tools=TOOLS, tool_choice="none")
    assert submit.params.grammar is None
    assert b"weather" not in bytes(token for token in submit.prompt if token < 256)


def test_calls_and_results_of_earlier_turns_are_in_the_prompt(asked):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    _, submit = asked(messages=history, tools=TOOLS)
    prompt = bytes(submit.prompt).decode()
    assert f"<assistant>{calls_text([ROME], HERMES)}\n" in prompt
    assert "<user><tool_response>\nsunny\n</tool_response>\n<a>" in prompt


@pytest.mark.parametrize("runs", [(1,), (4, 9), (200,)])
def test_reasoning_is_told_from_content_streamed_and_whole(thinking, runs):
    text = "<think>\nIs it 4?\nYes.\n</think>\n\nIt is 4."
    with client_of(thinking) as client:
        thinking.engine.script = lambda submit: speak(submit, text=text, runs=runs)
        message = client.chat.completions.create(**ASK).choices[0].message
        chunks = client.chat.completions.create(**ASK, stream=True)
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        assert thinking.engine.submits[-1].params.grammar is None
        used = client.chat.completions.create(**ASK).usage.completion_tokens_details
        assert used.reasoning_tokens == len(text) - len("\n\nIt is 4.")
        cut = client.chat.completions.create(**{**ASK, "max_tokens": 12}).usage
        assert cut.completion_tokens_details.reasoning_tokens == cut.completion_tokens == 12
        thinking.engine.script = lambda submit: speak(submit, text="<thin air")
        none = client.chat.completions.create(**ASK)
        assert (none.usage.completion_tokens_details.reasoning_tokens, none.choices[0].message.content) == (
            0,
            "<thin air",
        )
    assert (message.reasoning_content, message.content) == ("Is it 4?\nYes.", "It is 4.")
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content


def test_a_grammar_begins_behind_the_reasoning(thinking):
    with client_of(thinking) as client:
        thinking.engine.script = lambda submit: speak(submit, text='Hm.</think>{"a": 1}')
        message = client.chat.completions.create(**ASK, response_format={"type": "json_object"}).choices[0].message
        submit = thinking.engine.submits[-1]
        assert submit.params.grammar == GrammarSpec("json_object", "", tuple(b"</think>"))
        assert bytes(submit.prompt).endswith(b"<a><think>\n")
        assert (message.reasoning_content, message.content) == ("Hm.", '{"a": 1}')
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        client.chat.completions.create(**ASK, response_format={"type": "json_object"}, extra_body=off)
        submit = thinking.engine.submits[-1]
        assert submit.params.grammar.after == ()
        assert bytes(submit.prompt).endswith(b"<think></think>")


def test_the_server_says_how_chats_are_written(http):
    chat = http.get("/server_info").json()["chat"]
    assert chat == {"tool_format": "hermes", "template_shows_tools": False, "reasoning": None}
