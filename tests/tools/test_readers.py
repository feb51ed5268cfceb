"""Reading a turn: the same parts however its text arrives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.text import ByteTokenizer, ChatTemplate
from overdrive.tools.calls import whole_calls
from overdrive.tools.formats import FORMATS, THINKING, format_of
from overdrive.tools.prompt import calls_text
from overdrive.tools.style import chat_style
from overdrive.tools.turn import TurnReader

NAMES = ["f", "get_weather"]


def some_calls(form):
    return CALLS[:1] if form.single else CALLS


CALLS = [{"name": "f", "arguments": {"a": 'x"}\\ <think>', "b": [1, {"c": None}]}}, {"name": "f", "arguments": {}}]
every_form = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def style_with(source, form="auto"):
    return chat_style(ChatTemplate({"default": source}, {}, "test"), ByteTokenizer(), form)


def read(style, pieces, reasons=False, names=NAMES):
    """Reasoning, content and calls of a turn that arrives as `pieces`."""
    reader = TurnReader(style, reasons, names, new_id=lambda index, written: f"{index}:{written}")
    parts = [reader.take(piece) for piece in pieces] + [reader.take("", last=True)]
    reasoning, content = ("".join(getattr(part, name) for part in parts) for name in ("reasoning", "content"))
    return reasoning, content, whole_calls(piece for part in parts for piece in part.calls), reader.calls_whole


def cut(text, places):
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def turns(form):
    """Turns of every kind: whole and cut off, with text before, between and behind."""
    calls = calls_text(some_calls(form), form)
    texts = st.sampled_from(
        ["", "Hi. ", "\n\n", "<think>so\n </think>\n", "<thi", form.trigger[:3], form.begin + form.call]
    )
    return st.builds(
        lambda before, end, behind: (before + calls)[:end] + behind, texts, st.integers(0, len(calls) + 30), texts
    )


@every_form
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_same_parts(form, data):
    style = style_with("tools <think> </think>", form.name)
    text = data.draw(turns(form))
    reasons = data.draw(st.booleans())
    places = data.draw(st.lists(st.integers(0, 10_000), max_size=12))
    whole = read(style, [text], reasons)
    assert read(style, cut(text, places), reasons) == whole
    assert read(style, list(text), reasons) == whole


@every_form
def test_arguments_come_as_they_are_written(form):
    style = style_with("tools", form.name)
    reader = TurnReader(style, False, NAMES)
    seen = [piece for char in calls_text(CALLS[:1], form) for piece in reader.take(char).calls]
    assert (seen[0].name, seen[0].arguments, seen[0].index) == ("f", "", 0)
    assert len(seen) > 20
    assert all(piece.arguments and not piece.name and not piece.id for piece in seen[1:])


@pytest.mark.parametrize("marks", THINKING, ids=lambda marks: marks.open)
def test_reasoning_is_told_from_the_answer(marks):
    style = style_with(f"{marks.open} {marks.close}")
    inner = f"so it\nis </thin {marks.close[:-1]}"
    for space in ("", "\n", "\n\n "):
        text = f"{inner}{space}{marks.close}{space}The answer."
        assert read(style, [text], reasons=True)[:2] == (inner, "The answer.")
        assert read(style, [f"{space}{marks.open}{space}{text}"])[:2] == (inner, "The answer.")
    assert read(style, ["never ends"], reasons=True)[:2] == ("never ends", "")
    assert read(style, ["none at all"])[:2] == ("", "none at all")
    assert read(style, [marks.open[:4]])[:2] == ("", marks.open[:4])


def test_calls_are_read_behind_the_reasoning_only():
    style = style_with("tools <think> </think>", "hermes")
    call = calls_text([{"name": "f", "arguments": {}}], FORMATS["hermes"])
    reasoning, content, calls, whole = read(style, [f"I might {call}</think>\n\n{call}"], reasons=True)
    assert (reasoning, content, [c.name for c in calls], whole) == (f"I might {call}", "", ["f"], True)


def test_what_was_cut_off_is_not_whole():
    style = style_with("tools", "hermes")
    call = calls_text([{"name": "f", "arguments": {"a": 1}}], FORMATS["hermes"])
    for size in range(len(call)):
        assert not read(style, [call[:size]])[3], call[:size]
    assert read(style, [call])[3]
    assert read(style, [call[:20]])[1] == call[:20]  # no name was whole: it stays text
    assert read(style, [call.replace('"f"', '"g"')])[1] == call.replace('"f"', '"g"')


def test_what_follows_arguments_and_is_not_the_forms_end_is_text():
    style = style_with("tools", "hermes")
    call = calls_text([{"name": "f", "arguments": {"a": 1}}], FORMATS["hermes"])
    for pieces in ([call[:-8] + "so?"], list(call[:-8] + "so?")):
        assert read(style, pieces) == ("", "}\n</toso?", read(style, [call])[2], True)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{%- for tool in tools %}<tool_call>", "hermes"),
        ("tools '[TOOL_CALLS] ['", "mistral"),
        ("tools '[TOOL_CALLS]' '[ARGS]'", "mistral_args"),
        ("'<｜tool▁calls▁begin｜>' '```json'", "deepseek"),
        ("'<｜tool▁calls▁begin｜>'", "deepseek_v31"),
        ("'<|im_system|>tool_declare<|im_middle|>'", "kimi"),
        ("<|start_header_id|> '\"parameters\": '", "llama3"),
        ("<|im_start|>", "hermes"),
    ],
)
def test_a_template_shows_its_format(source, name):
    assert format_of(source).name == name
