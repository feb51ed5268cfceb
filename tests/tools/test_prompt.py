"""What a model is told of tools, calls and results, by its template or by words put into the messages."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from overdrive.config import ToolFormatName
from overdrive.errors import BadRequest
from overdrive.structured import Structured, structure_of
from overdrive.text import ByteTokenizer, ChatTemplate, CommittedText
from overdrive.tooled import Tooled, tool_use
from overdrive.tools.calls import CallReader, whole_calls
from overdrive.tools.formats import FORMATS
from overdrive.tools.prompt import calls_text
from overdrive.tools.style import chat_style
from overdrive.tools.turn import Asked, TurnReader, prepare
from overdrive.types import Finish, FinishReason

from .matching import MarkedTokenizer

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOLD = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN
STRINGS = (  # as DeepSeek's templates do it: arguments are text, which is put between others
    "{% for m in messages %}{% if m['tool_calls'] %}{% for tool in m['tool_calls'] %}"
    "{{ '<' + tool['function']['name'] + '|' + tool['function']['arguments'] + '>' }}{% endfor %}"
    "{% elif m['role'] == 'tool' %}({{ m['content'] }}){% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)
OBJECTS = (  # as Qwen's do it
    "{% for m in messages %}{% for tool in m.tool_calls or [] %}"
    "{{ tool.function.arguments if tool.function.arguments is string else tool.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "f", "description": "does it", "parameters": {"type": "object"}}}]
CALL = {"name": "f", "arguments": {"a": "é", "b": [None, 1]}}
ARGUMENTS = '{"a": "é", "b": [null, 1]}'
HISTORY = [
    {"role": "user", "content": "do"},
    {
        "role": "assistant",
        "content": "well",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "done"},
]


def prompt(source, messages=HISTORY, tools=(), form="auto"):
    """The prompt text of a turn by the template `source`."""
    template, tokenizer = ChatTemplate({"default": source}, {}, "test"), ByteTokenizer()
    use = tool_use(Tooled.model_validate({"tools": list(tools)}))
    turn = prepare(Asked(messages=messages, use=use), chat_style(template, tokenizer, form), template, tokenizer)
    return tokenizer.decode(turn.prompt)


def test_every_format_can_be_named_on_the_command_line() -> None:
    assert set(get_args(ToolFormatName)) == {"auto", *FORMATS}


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_template_that_knows_nothing_of_tools_is_told_in_words(form) -> None:
    text = prompt(PLAIN, tools=TOOLS, form=form.name)
    assert text.startswith("[system]You can call these functions:\n" + json.dumps(TOOLS[0]["function"]))
    assert f"[assistant]well\n{calls_text([CALL], form)}[user]<tool_response>\ndone\n</tool_response>" in text
    system = [{"role": "system", "content": "Be kind."}, *HISTORY]
    assert prompt(PLAIN, system, TOOLS).startswith("[system]Be kind.\n\nYou can call")
    assert prompt(PLAIN, HISTORY[:1]) == "[user]do"


def test_a_template_that_knows_tools_is_left_to_it() -> None:
    assert prompt(TOLD, HISTORY[:1], TOOLS) == json.dumps(TOOLS) + "[user]do"


def test_earlier_arguments_are_text_or_an_object_as_the_template_takes_them() -> None:
    assert prompt(STRINGS) == f"do<f|{ARGUMENTS}>(done)"
    assert prompt(OBJECTS + "{# 'tool' #}") == ARGUMENTS


def test_ids_are_what_templates_can_take() -> None:
    def first_id(form):
        reader = CallReader(form, ["f"])
        return next(piece.id for piece in reader.push(calls_text([CALL], form)).calls)

    assert first_id(FORMATS["kimi"]) == "functions.f:0"
    assert len(first_id(FORMATS["mistral"])) == 9 and first_id(FORMATS["mistral"]).isalnum()
    assert first_id(FORMATS["hermes"]).startswith("call_")


def test_a_structure_and_bare_calls_cannot_be_told_apart() -> None:
    template, tokenizer = ChatTemplate({"default": TOLD}, {}, "test"), ByteTokenizer()
    use = tool_use(Tooled.model_validate({"tools": TOOLS}))
    structure = structure_of(Structured.model_validate({"guided_json": {"type": "object"}}))
    asked = Asked(messages=HISTORY[:1], use=use, structure=structure)
    assert prepare(asked, chat_style(template, tokenizer, "hermes"), template, tokenizer).grammar is not None
    with pytest.raises(BadRequest, match="guided_json"):
        prepare(asked, chat_style(template, tokenizer, "llama3"), template, tokenizer)


@pytest.mark.parametrize("plain", [False, True])
def test_free_text_needs_no_grammar_where_a_token_begins_calls(plain) -> None:
    """And nothing of the text before it is held to anything; a reasoning part comes first."""
    source = TOLD + "<tool_call> <think></think>{% if think %}<think>{% endif %}"
    template = ChatTemplate({"default": source}, {}, "test")
    tokenizer = MarkedTokenizer(("<tool_call>", "</tool_call>", "<think>", "</think>"), plain)
    style = chat_style(template, tokenizer)
    trigger, close = tokenizer.id_of("<tool_call>"), tokenizer.id_of("</think>")
    for choice, names, ids in (
        ("auto", {}, ((), (trigger,))),
        ("auto", {"think": True}, ((close,), (trigger,))),
        ("required", {"think": True}, ((close,), ())),
    ):
        use = tool_use(Tooled.model_validate({"tools": TOOLS, "tool_choice": choice}))
        turn = prepare(Asked(messages=HISTORY[:1], use=use, names=names), style, template, tokenizer)
        assert (turn.grammar.after, turn.grammar.trigger) == ids
        assert "TEXT" not in turn.grammar.source
        assert turn.reasons == bool(names)


@pytest.mark.parametrize("plain", [False, True])
def test_markers_that_are_special_tokens_are_read_and_never_shown(plain) -> None:
    template = ChatTemplate({"default": TOLD + "<tool_call><think></think>"}, {}, "test")
    tokenizer = MarkedTokenizer(("<tool_call>", "</tool_call>", "<think>", "</think>", "<other>"), plain)
    style = chat_style(template, tokenizer)
    text = CommittedText(tokenizer, table=style.table)
    reader = TurnReader(style, False, ["f"])
    call = calls_text([CALL], FORMATS["hermes"])
    parts = [
        reader.take(text.take([token]))
        for token in tokenizer.encode(f"<think>hm</think>well {call}", add_special=False)
    ]
    parts.append(reader.take(text.take([], Finish(FinishReason.STOP)), last=True))
    assert "".join(part.reasoning for part in parts) == "hm"
    assert "".join(part.content for part in parts) == "well"
    [read] = whole_calls(piece for part in parts for piece in part.calls)
    assert json.loads(read.arguments) == CALL["arguments"]
    other = CommittedText(tokenizer, table=style.table).take([tokenizer.id_of("<other>")])
    assert other == ("<other>" if plain else "")


@pytest.mark.parametrize("schema", [{"description": "any"}, {"anyOf": [{"type": "string"}, {"required": ["a"]}]}, {}])
def test_arguments_are_an_object_whether_their_schema_says_so_or_not(schema) -> None:
    """Calls could not be told from what follows them otherwise."""
    use = tool_use(
        Tooled.model_validate({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})
    )
    assert use.callable[0].arguments == {"type": "object", **(schema or use.callable[0].arguments)}
