"""What each format's grammar lets a model write, and that this is what its reader reads."""

from __future__ import annotations

import json

import pytest

from overdrive.tooled import FunctionTool
from overdrive.tools.calls import CallReader, whole_calls
from overdrive.tools.formats import FORMATS
from overdrive.tools.grammar import tool_grammar
from overdrive.tools.prompt import calls_text

from .matching import MarkedTokenizer, allows

WEATHER = FunctionTool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = FunctionTool(name="get.time-2")
TOOLS = (WEATHER, CLOCK)
ROME = {"name": "get_weather", "arguments": {"city": 'Ro"me <tool_call> } [TOOL_CALLS]', "days": 3}}
NOW = {"name": "get.time-2", "arguments": {}}
every_form = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
every_vocabulary = pytest.mark.parametrize("plain", [False, True, None], ids=["special", "plain", "bytes"])


class Setting:
    """One format in a vocabulary where its markers are special tokens, plain tokens, or just text (None)."""

    def __init__(self, form, plain):
        self.form = form
        self.tokenizer = MarkedTokenizer(form.markers if plain is not None else (), bool(plain))
        table = self.tokenizer.table
        self.specials = {m: self.tokenizer.id_of(m) for m in form.markers if self.tokenizer.id_of(m) in table.special}

    def grammar(self, **options):
        return tool_grammar(self.form, TOOLS, self.specials, **{"starts": "text", **options})

    def allows(self, text, **options):
        ids = self.tokenizer.encode(text, add_special=False)
        return allows(self.grammar(**options), self.tokenizer, ids)


@every_form
@every_vocabulary
def test_calls_are_what_the_format_says_and_the_reader_reads_them(form, plain):
    setting = Setting(form, plain)
    # A special token has no place inside a string: there its text is other tokens.
    rome = ROME if not setting.specials else {**ROME, "arguments": {"city": "Rome", "days": 3}}
    for calls in ([rome], [rome, NOW], [NOW, rome, NOW]):
        text = calls_text(calls, form)
        for starts in ("calls", "text"):
            one = setting.allows(text, starts=starts, parallel=False) == "whole"
            many = setting.allows(text, starts=starts) == "whole"
            assert (one, many) == (len(calls) == 1, len(calls) == 1 or not form.single)
        reader = CallReader(form, [tool.name for tool in TOOLS])
        found = [reader.push(text), reader.finish()]
        read = whole_calls([piece for part in found for piece in part.calls])
        assert "".join(part.text for part in found) == ""
        assert [(c.name, json.loads(c.arguments)) for c in read] == [(c["name"], c["arguments"]) for c in calls]
        assert reader.whole
        assert len({c.id for c in read}) == len(read)


@every_form
@every_vocabulary
def test_what_is_no_call_of_a_known_tool_is_not_let_through(form, plain):
    setting = Setting(form, plain)
    for wrong in (
        {"name": "get_money", "arguments": {}},
        {"name": "get_weather", "arguments": {}},
        {"name": "get_weather", "arguments": {"city": 5}},
        {"name": "get.time-2", "arguments": {"zone": "UTC"}},
    ):
        for starts in ("calls", "text"):
            assert setting.allows(calls_text([wrong], form), starts=starts) == "no"


@every_form
@every_vocabulary
def test_free_text_is_free_until_calls_begin(form, plain):
    setting = Setting(form, plain)
    call = calls_text([NOW], form)
    for text in ("", "Hello.", "a < b {} [x] \n\n", "<tool", "é👋"):
        assert setting.allows(text) == "whole"
        assert setting.allows(text, starts="calls") != "whole"
        if form.trigger:
            assert setting.allows(text + call) == "whole"
            assert setting.allows(text + call + " and more") == "no"
            reader = CallReader(form, [tool.name for tool in TOOLS])
            parts = [reader.push(text + call), reader.finish()]
            assert "".join(part.text for part in parts) == text.rstrip()
            assert [c.name for c in whole_calls(p for part in parts for p in part.calls)] == [NOW["name"]]


@every_form
@every_vocabulary
def test_behind_a_trigger_that_the_engine_watched_for_come_calls_alone(form, plain):
    setting = Setting(form, plain)
    text = calls_text([NOW], form)
    behind = text[len(form.trigger) :]
    assert setting.allows(behind, starts="triggered") == "whole"
    assert setting.allows("", starts="triggered") == "begins"
    assert setting.allows("x", starts="triggered") == "no"


@pytest.mark.parametrize("form", [form for form in FORMATS.values() if form.trigger], ids=lambda form: form.name)
@every_vocabulary
def test_a_document_takes_the_place_of_free_text(form, plain):
    setting = Setting(form, plain)
    document = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert setting.allows('{"a": 1}', document=document) == "whole"
    assert setting.allows("Hello", document=document) == "no"
    assert setting.allows(calls_text([NOW], form), document=document) == "whole"
