"""What an answer is to look like, as clients say it, and the limits on what they may say of structure and tools.

Names are OpenAI's, and those under which vLLM's and SGLang's clients already send grammars. The HTTP endpoints and the
LLM class both stand on this. Whether a schema or grammar can be compiled is found where the engine runs; here is what
can be told from the request alone, cheaply enough for any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from overdrive.errors import BadRequest
from overdrive.json_text import parse_json
from overdrive.strict import Model
from overdrive.types import GrammarSpec

MAX_SCHEMA_CHARS = 1 << 20  # of one schema, and of all tools of a request together
MAX_SCHEMA_DEPTH = 128  # containers within containers
MAX_REGEX_CHARS = 16 << 10
MAX_GRAMMAR_CHARS = 256 << 10
MAX_CHOICES = 10_000
MAX_TOOLS = 128

Ignored = Any  # accepted because stock clients send it; has no effect
Schema = dict[str, Any]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)]
Regex = Annotated[str, Field(min_length=1, max_length=MAX_REGEX_CHARS)]
Grammar = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]


class JsonSchema(Model):
    """The schema of a `response_format`. `strict` makes no difference: every answer is held to its schema."""

    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Model):
    """Text, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Model):
    """vLLM's `structured_outputs`: one of the five."""

    json_: Schema | str | None = Field(default=None, alias="json")
    regex: Regex | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    disable_fallback: Ignored = None
    disable_any_whitespace: Ignored = None


class Structured(Model):
    """The ways to ask for structure; one of them at a time."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    guided_decoding_backend: Ignored = None
    json_schema: Schema | str | None = None
    regex: Regex | None = None
    ebnf: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """What the text of an answer must be. field: of the request, for errors. schema: of JSON, None for other kinds."""

    grammar: GrammarSpec
    field: str
    schema: Schema | None = None


def structure_of(given: Structured) -> Structure | None:
    """What `given` asks for, None for free text.

    Raises BadRequest, naming the field, for two forms at once, a schema that is none, and one beyond the limits.
    """
    found = list(_forms(given))
    if len(found) > 1:
        names = f"{found[0].field} and {found[1].field}"
        raise BadRequest(f"{names} both ask for a structure; send one of them", found[1].field)
    return found[0] if found else None


def _forms(given: Structured) -> Iterator[Structure]:
    form = given.response_format
    if form is not None and form.type == "json_object":
        yield _any_object("response_format")
    if form is not None and form.type == "json_schema":
        schema = form.json_schema.schema_ if form.json_schema else None
        if schema is None:
            name = "response_format.json_schema" + (".schema" if form.json_schema else "")
            raise BadRequest(f"missing field: {name}", name, "missing_required_parameter")
        yield _json("response_format.json_schema.schema", schema)
    yield from _outputs(given.structured_outputs)
    for name in ("guided_json", "json_schema"):
        if (schema := getattr(given, name)) is not None:
            yield _json(name, schema)
    for name in ("guided_regex", "regex"):
        if (pattern := getattr(given, name)) is not None:
            yield Structure(GrammarSpec("regex", pattern), name)
    if given.guided_choice is not None:
        yield _choice("guided_choice", given.guided_choice)
    if given.guided_grammar is not None:
        yield _grammar("guided_grammar", given.guided_grammar)
    if given.ebnf is not None:
        yield Structure(GrammarSpec("gbnf", given.ebnf), "ebnf")


def _outputs(given: StructuredOutputs | None) -> Iterator[Structure]:
    if given is None:
        return
    if given.json_ is not None:
        yield _json("structured_outputs.json", given.json_)
    if given.regex is not None:
        yield Structure(GrammarSpec("regex", given.regex), "structured_outputs.regex")
    if given.choice is not None:
        yield _choice("structured_outputs.choice", given.choice)
    if given.grammar is not None:
        yield _grammar("structured_outputs.grammar", given.grammar)
    if given.json_object:
        yield _any_object("structured_outputs.json_object")


def _any_object(field: str) -> Structure:
    return Structure(GrammarSpec("json_object"), field, {"type": "object"})


def _json(field: str, given: Schema | str) -> Structure:
    """A schema, or the text of one."""
    schema: Any = given
    if isinstance(given, str):
        if len(given) > MAX_SCHEMA_CHARS:
            raise BadRequest(f"{field}: the schema has more than {MAX_SCHEMA_CHARS} characters", field)
        try:
            schema = parse_json(given)
        except ValueError as error:
            raise BadRequest(f"{field}: the schema is no valid JSON: {error}", field) from None
        if not isinstance(schema, dict):
            raise BadRequest(f"{field}: the schema must be a JSON object", field)
    return Structure(GrammarSpec("json_schema", schema_text(schema, field)), field, schema)


def _choice(field: str, choices: list[str]) -> Structure:
    return Structure(GrammarSpec("choice", json.dumps(choices, ensure_ascii=False)), field)


def _grammar(field: str, source: str) -> Structure:
    """GBNF defines its rules by `::=`, Lark by a colon."""
    return Structure(GrammarSpec("gbnf" if "::=" in source else "lark", source), field)


def schema_text(schema: Schema, field: str) -> str:
    """The schema as JSON text. Raises BadRequest where it is beyond the limits on depth and length."""
    _check_depth(schema, field)
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:  # from a Python program
        raise BadRequest(f"{field}: the schema is no JSON: {error}", field) from None
    if len(text) > MAX_SCHEMA_CHARS:
        raise BadRequest(f"{field}: the schema has {len(text)} characters, the limit is {MAX_SCHEMA_CHARS}", field)
    return text


def _check_depth(schema: Schema, field: str) -> None:
    layer: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        layer = [inner for one in layer for inner in _children(one)]
        if not layer:
            return
    raise BadRequest(f"{field}: the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep", field)


def _children(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value
    return [inner for inner in items if isinstance(inner, (dict, list))]
