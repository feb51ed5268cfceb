"""Schemas, grammars and chat templates of strangers: used or refused in one line; no file is read, no code is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overdrive.errors import BadRequest, OverdriveError
from overdrive.grammar.constraint import Constrained
from overdrive.grammar.programs import wait_for
from overdrive.structured import schema_text
from overdrive.text import ChatTemplate
from tests.effort import effort
from tests.grammar.words import EOS, programs
from tests.patience import PATIENCE

from .damage import answers, any_json, changed, deep

SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["a"]},
    {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 3}, {"enum": [1, "x"]}]}, "maxItems": 3},
    {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"type": ["string", "null"], "minLength": 1, "maxLength": 9, "format": "date-time"},
    {"allOf": [{"type": "object", "additionalProperties": False}], "const": {"a": 1}},
]
SOURCES = {
    "regex": ["[0-9]{2}-(a|b)+", "(a?){9}a{9}", "\\d+\\.\\w*", "[^\\x00-é]", "a{2,}(?i:b)"],
    "lark": ['start: "a" rest\nrest: /[0-9]+/', 'start: %json {"type": "integer"}', "start: <tool> start?"],
    "gbnf": ['root ::= "a" ("b" | [c-e])*', 'root ::= ws "x"\nws ::= [ \\t]*', "root ::= root"],
    "choice": ['["a", "b"]', '["", "\\u00e9"]'],
}
PIECES = ["(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "::=", ":", "\n", '"', "/", "\\", "%", "9" * 9, "é", "\x00"]


PROGRAMS = programs()


def constrained(kind: str, source: str) -> None:
    """What is compiled can be followed."""
    ticket = PROGRAMS.ask(kind, source)
    wait_for([ticket], PATIENCE)
    constraint = Constrained(ticket.program(), (EOS,))
    constraint.certain(3)


@effort(1.0)
@given(data=st.data())
def test_schemas(data: st.DataObject) -> None:
    schema = data.draw(st.sampled_from(SCHEMAS).flatmap(changed) | st.dictionaries(st.text(max_size=5), any_json))
    text = answers(lambda: schema_text(schema, "schema"))
    if text is not None:
        answers(lambda: constrained("json_schema", text))


@effort(1.0)
@given(data=st.data(), kind=st.sampled_from(sorted(SOURCES)))
def test_grammars(data: st.DataObject, kind: str) -> None:
    source = data.draw(st.sampled_from(SOURCES[kind]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(source)))
        source = source[:at] + data.draw(st.sampled_from(PIECES)) + source[at + data.draw(st.integers(0, 4)) :]
    answers(lambda: constrained(kind, source))


@pytest.mark.parametrize("kind", ["json_schema", "choice", "regex", "lark", "gbnf", "json_object", "unheard of"])
@pytest.mark.parametrize(
    "source", ["", deep(5000), "(" * 5000, '"' * 5000, "\ud800", "{}", "null", "[" + '"a",' * 999 + '""]']
)
def test_sources_that_are_no_grammar_of_their_kind(kind: str, source: str) -> None:
    answers(lambda: constrained(kind, source))


MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
WORDS = [
    *(
        "messages",
        "m",
        "m.content",
        "'a'",
        "1",
        "9999999999",
        "[1, 2]",
        "{}",
        "none",
        "range(9)",
        "loop",
        "namespace(a=1)",
    ),
    *(" + ", " * ", " ** ", " ~ ", " // ", " % ", ".", "|", "(", ")", "[", "]", ", ", " in ", " is ", " if ", " else "),
    *("tojson", "length", "join", "first", "trim", "format", "attr('__class__')", "__init__", "strftime_now", "caller"),
    *(
        "{{ ",
        " }}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if m %}",
        "{% endif %}",
        "{% set m = ",
        " %}",
        "{% break %}",
    ),
    *(
        "{% macro f(x) %}",
        "{% endmacro %}",
        "f(m)",
        "{% raw %}",
        "{#",
        "{% include 'x' %}",
        "{% generation %}",
        "{% break %}",
    ),
]


@effort(2.0)
@given(words=st.lists(st.sampled_from(WORDS), max_size=14), kept=st.booleans())
def test_templates(words: list[str], kept: bool) -> None:
    source = "".join(words)
    if kept:  # more often a template that can be parsed
        source = (
            "{% for m in messages %}{{ " + source.replace("{", "").replace("}", "").replace("%", "") + " }}{% endfor %}"
        )
    template = answers(lambda: ChatTemplate({"default": source}, {"bos_token": "<s>"}, "test"))
    if template is not None:
        answers(lambda: template.render(MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}]))


SECRET = "not to be read"
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch ran').read() }}",
    "{{ lipsum.__globals__['os'].system('touch ran') }}",
    "{{ joiner|attr('__init__')|attr('__globals__') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ ''.format.__self__.__class__ }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ ('%s' % messages.__class__) }}",
    "{% include 'secret' %}",
    "{% import 'secret' as s %}{{ s }}",
    "{% extends 'secret' %}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ url_for.__globals__ }}",
    "{{ open('secret').read() }}",
    "{{ __import__('os').listdir('.') }}",
    "{{ config }}{{ request.environ }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_no_template_reads_a_file_or_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    template = answers(lambda: ChatTemplate({"default": source}, {}, "test"))
    said = answers(lambda: template.render(MESSAGES)) if template else None
    assert not (tmp_path / "ran").exists()
    assert said is None or not any(sign in said for sign in (SECRET, "<class", "<built-in", "object at", "secret"))


BOMBS = [
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '%*d' % (9999999999, 1) }}",
    "{{ '{:9999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 9999999999) }}",
    "{{ 'a'.ljust(9999999999) }}",
    "{{ 'a'.center(9999999999) }}",
    "{{ '1'.zfill(9999999999) }}",
    "{{ ('\\t' * 999).expandtabs(99999999) }}",
    "{{ 'a'|center(9999999999) }}",
    "{{ 'a\\nb'|indent(9999999999) }}",
    "{{ '%9999999999d'|format(1) }}",
    "{{ [1]|tojson(indent=9999999999) }}",
    "{{ ('a' * 9999).replace('a', 'b' * 9999999) }}",
    "{{ ('b' * 999999).join('a' * 99999) }}",
    "{{ ('a' * 99999)|replace('a', 'b' * 999999) }}",
    "{{ [1]|batch(9999999999, 0)|list }}",
    "{{ [1]|slice(9999999999)|list }}",
    "{{ range(99999999999)|list }}",
    "{{ lipsum(n=99999999) }}",
    "{{ 7.0 ** 99999999 }}",
    "{% for x in 'a' recursive %}{{ loop('a') }}{% endfor %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 60 + "{% endcall %}" * 60,
    "{% for a in messages %}" * 60 + "{% endfor %}" * 60,
    "{% if 1 %}" * 600 + "{% endif %}" * 600,
    "{{ " + "(" * 600 + "1" + ")" * 600 + " }}",
    "{{ " + "-" * 9000 + "1 }}",
    "{{ " + "[" * 9000 + "]" * 9000 + " }}",
    "{{ " + " ~ ".join("1" * 3000) + " }}",
]


@pytest.mark.parametrize("source", BOMBS, ids=lambda source: source[:40])
def test_no_template_takes_all_memory_or_time(source: str) -> None:
    with pytest.raises(OverdriveError) as refused:
        template = ChatTemplate({"default": source}, {}, "test")
        said = template.render(MESSAGES)
        raise BadRequest(f"harmless: {len(said)} characters")  # what is small after all is no bomb
    assert "\n" not in str(refused.value)
