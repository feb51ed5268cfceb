"""From what a request says to the text that the grammar library compiles: kinds, sizes, and the form of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import llguidance

if TYPE_CHECKING:  # described in its stubs alone
    from llguidance._lib import JsonCompileOptions

from overdrive.errors import BadRequest
from overdrive.grammar.schema import plain
from overdrive.json_text import parse_json

MOST_BYTES = 1 << 20
"""Of a grammar's source: compiling takes time and memory in proportion, and cannot be interrupted."""

JSON_STYLE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""How JSON is laid out: on one line, as `json.dumps` writes it and chat templates show it. Where white space is free, a
model may write it for ever, and hardly anything of an answer is certain beforehand. A schema's "x-guidance" has the
last word."""


def compose(kind: str, source: str) -> str:
    """The library's grammar for `GrammarSpec.kind` and `.source`. Raises BadRequest, naming what is wrong."""
    writer = _WRITERS.get(kind)
    if writer is None:
        raise BadRequest(f"{kind!r} is no kind of grammar; there are {', '.join(sorted(_WRITERS))}")
    size = len(source.encode())
    if size > MOST_BYTES:
        raise BadRequest(f"the grammar has {size} bytes, the limit is {MOST_BYTES}")
    return writer(source)


def _json_object(source: str) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema('{"type": "object"}', defaults=JSON_STYLE)


def _json_schema(source: str) -> str:
    return schema_grammar(read_schema(source))


def read_schema(source: str) -> dict[str, Any] | bool:
    """A schema from its text. Raises BadRequest where it is none."""
    try:
        schema = parse_json(source)
    except ValueError as error:
        raise BadRequest(f"the JSON schema is no JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise BadRequest(f"a JSON schema is an object or a boolean, not {type(schema).__name__}")
    return schema


def schema_grammar(schema: dict[str, Any] | bool) -> str:
    """The library's grammar for a schema. Raises BadRequest, naming keyword and place, for one it has none for."""
    if schema is False:
        raise BadRequest("the JSON schema cannot be used: it allows nothing")
    try:
        text = json.dumps({} if schema is True else plain(schema), ensure_ascii=False)
        return llguidance.LLMatcher.grammar_from_json_schema(text, defaults=JSON_STYLE)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the JSON schema cannot be used: {error}") from error


def one_line(said: str) -> str:
    """What the library says, on one line and short enough for a person."""
    return " ".join(line.strip() for line in said.strip().splitlines())[:300]


def _choice(source: str) -> str:
    try:
        choices = parse_json(source)
    except ValueError as error:
        raise BadRequest(f"the choices are no JSON list: {error}") from error
    if not (isinstance(choices, list) and choices and all(isinstance(choice, str) and choice for choice in choices)):
        raise BadRequest("choices must be a list of at least one string, none of them empty")
    # One terminal: rules of a parser would be looked at one by one at every token, and 2,000 are its most.
    words = " | ".join(map(json.dumps, dict.fromkeys(choices)))
    return llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {words}")


def _gbnf(source: str) -> str:
    try:
        return llguidance.LLMatcher.grammar_from_lark(llguidance.gbnf_to_lark.any_to_lark(source))
    except Exception as error:  # the converter raises nothing narrower
        raise BadRequest(f"the grammar is no GBNF: {error}") from error


_WRITERS: dict[str, Callable[[str], str]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": llguidance.LLMatcher.grammar_from_regex,
    "choice": _choice,
    "lark": llguidance.LLMatcher.grammar_from_lark,
    "gbnf": _gbnf,
}
