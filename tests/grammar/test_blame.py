"""A schema that cannot be used is told so by keyword and place, and nothing in it switches off what it says."""

from __future__ import annotations

import json

import pytest

from overdrive.errors import BadRequest
from overdrive.grammar.blame import blame
from overdrive.grammar.schema import plain
from overdrive.grammar.trial import accepts, byte_compiler

OPEN = {"type": "string", "pattern": "("}
SHORT = {"type": "string", "minLength": 5, "maxLength": 2}


def within(part: object) -> dict:
    """A part at #/properties/a~1b/items, beside others that are fine."""
    beside = {"type": "string", "pattern": "^x+$"}
    return {"type": "object", "properties": {"x": beside, "a/b": {"type": "array", "items": part}}}


@pytest.mark.parametrize(
    ("part", "keyword", "said"),
    [
        (OPEN, "pattern", "unclosed group"),
        ({"type": "string", "pattern": "(?=x)y"}, "pattern", "look-around"),
        ({"type": "string", "pattern": r"\p{Foo}"}, "pattern", "property not found"),
        ({"type": "string", "pattern": 3}, "pattern", "Expected string"),
        ({"type": "object", "patternProperties": {"a(": {}}}, "patternProperties", "unclosed group"),
        ({"type": "string", "minLength": -1}, "minLength", "positive integer"),
        ({"type": "integer", "multipleOf": 0}, "multipleOf", "invalid multiple"),
    ],
)
def test_the_place_is_told(part: dict, keyword: str, said: str) -> None:
    with pytest.raises(BadRequest) as found:
        byte_compiler()("json_schema", json.dumps(within(part)))
    assert f"'{keyword}' at #/properties/a~1b/items cannot be used: " in str(found.value)
    assert said in str(found.value)


@pytest.mark.parametrize(("schema", "keyword"), [(SHORT, "minLength"), ({"enum": []}, "enum")])
def test_what_nothing_satisfies_is_told_by_its_first_keyword(schema: dict, keyword: str) -> None:
    with pytest.raises(BadRequest, match=f"'{keyword}' at # cannot be used: Unsatisfiable"):
        byte_compiler()("json_schema", json.dumps(schema))


def test_the_place_is_found_behind_references() -> None:
    either = {"anyOf": [{"type": "null"}, OPEN]}
    schema = {"$ref": "#/$defs/a", "$defs": {"a": within({"$ref": "#/$defs/b"}), "b": either}}
    with pytest.raises(BadRequest, match="'pattern' at #/\\$defs/b/anyOf/1 "):
        byte_compiler()("json_schema", json.dumps(schema))


def test_circles_have_an_end() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}}}
    assert blame(schema, lambda part: "no") == ("#/$defs/a/anyOf/0", "")


GUIDED = {
    "lenient": True,
    "coerce_one_of": True,
    "whitespace_pattern": "x*",
    "item_separator": ";",
    "key_separator": "=",
    "unheard of": 1,
}


@pytest.mark.parametrize("key", GUIDED)
def test_what_a_schema_says_to_the_library_switches_nothing_off(key: str) -> None:
    """Neither its own keywords nor that the answer is JSON."""
    guided = {"x-guidance": {key: GUIDED[key]}, "type": "object", "properties": {"a": {"not": {}}}}
    with pytest.raises(BadRequest, match="'not' at #/properties/a"):
        byte_compiler()("json_schema", json.dumps(guided))
    guided["properties"] = {"a": {"const": 1}, "b": {"const": 2}}
    program = byte_compiler()("json_schema", json.dumps(guided))
    assert accepts(program, '{"a": 1, "b": 2}')
    for text in ('{"a":1,"b":2}', '{"a": 1; "b": 2}', '{"a"=1, "b"=2}', '{"a": 1, x"b": 2}', '{"a": 3}'):
        assert not accepts(program, text)


def test_layout_is_a_schemas_own_business() -> None:
    layout = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    schema = {"x-guidance": layout, "properties": {"a": {"const": 1}, "b": {"const": 2}}, "type": "object"}
    assert plain(schema) == schema
    assert accepts(byte_compiler()("json_schema", json.dumps(schema)), '{"a":1,"b":2}')
    assert plain({"x-guidance": 3}) == {"x-guidance": {}}
