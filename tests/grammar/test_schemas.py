"""What JSON schemas allow, by the official test suite; what is refused is refused by name and place."""

from __future__ import annotations

import json
import random
from functools import lru_cache, partial
from pathlib import Path

import pytest

from overdrive.errors import BadRequest, OverdriveError
from overdrive.grammar.guidance import complaint
from overdrive.grammar.schema import check_schema, places, plain
from overdrive.grammar.trial import accepts, as_written, byte_compiler, sample
from overdrive.grammar.vetter import Level
from overdrive.grammar.vetting import Vetting
from overdrive.schema_check import check_files

SUITE = json.loads((Path(__file__).parent / "suite_excerpt.json").read_text(encoding="utf-8"))

NOT_ENFORCED = {"not", "if-then-else", "uniqueItems", "contains", "dependentRequired", "oneOf"}


@lru_cache(maxsize=1)
def compiler():
    return byte_compiler()


def compiled(schema):
    return compiler()("json_schema", json.dumps(schema))


@pytest.mark.parametrize("name", SUITE)
def test_no_invalid_instance_is_accepted(name: str) -> None:
    """A schema is refused as a whole, or else every invalid instance is; most valid ones are accepted."""
    refused, valid = 0, []
    for group in SUITE[name]:
        try:
            program = compiled(group["schema"])
        except BadRequest as error:
            refused += 1
            assert "at #" in str(error) or "cannot be used" in str(error)
            continue
        for test in group["tests"]:
            found = accepts(program, as_written(test["data"]))
            if test["valid"]:
                valid.append(found)
            else:
                assert not found, (group["description"], test)
    assert not valid or sum(valid) >= 0.6 * len(valid)
    assert refused if name in NOT_ENFORCED else refused < 2


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "properties": {"a/b": {"not": {}}}}, "'not' at #/properties/a~1b"),
        ({"items": {"format": "regex", "type": "string"}}, "'format' 'regex' at #/items"),
        ({"anyOf": [{"uniqueItems": True, "type": "array"}, True]}, "'uniqueItems' at #/anyOf/0"),
        ({"properties": {"a": {"type": "strin"}}}, "'type' 'strin' at #/properties/a"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"contains": {}}}}}, "'contains' at #/$defs/a/items"),
    ],
)
def test_what_cannot_be_enforced_is_named(schema: dict, named: str) -> None:
    """Whether it is looked for beforehand or found when it is compiled."""
    for refuses in (check_schema, compiled):
        with pytest.raises(BadRequest) as refusal:
            refuses(schema)
        assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' at #"),
        ({"$ref": "http://example.com/other.json"}, "'$ref'"),
        ({"patternProperties": {"a*": {}, "aa*": {}}, "type": "object"}, "'patternProperties' at #"),
        ({"properties": {"a": {}}, "minProperties": 1, "maxProperties": 3}, "'minProperties' at #"),
    ],
)
def test_what_does_not_go_together_is_named(schema: dict, named: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        compiled(schema)
    assert named in str(refusal.value)


def test_what_is_never_referred_to_is_no_obstacle() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}, "b": {"not": {}}}}
    check_schema(schema)
    compiled(schema)


def test_what_has_no_effect_is_no_obstacle() -> None:
    """An unknown format, `then` without `if`, a count that is a whole float."""
    schema = {"type": "string", "format": "colour", "then": {"type": "integer"}, "minLength": 2.0}
    check_schema(schema)
    assert not accepts(compiled(schema), '"a"')
    assert accepts(compiled(schema), '"ab"')


def test_dates_are_those_of_the_calendar() -> None:
    program = compiled({"type": "string", "format": "date"})
    for date, real in (("2024-02-29", True), ("2023-02-29", False), ("2000-02-29", True), ("1900-02-29", False)):
        assert accepts(program, f'"{date}"') == real


def test_plain_leaves_data_alone() -> None:
    """What looks like a schema is none within `enum`, `const` or a property's name."""
    schema = {"enum": [{"format": "x", "minLength": 1.0}], "properties": {"format": {"const": {"format": "x"}}}}
    assert plain(schema) == schema
    assert [pointer for pointer, _ in places(schema)] == ["#", "#/properties/format"]


def test_an_unknown_complaint_is_passed_on() -> None:
    assert complaint("json_schema", "{}", "too large") == "JSON schema: what is at # cannot be used: too large"


def test_samples_follow_their_schema() -> None:
    for seed, schema in enumerate(({"type": "integer", "minimum": 90}, {"enum": ["ä", 3]}, {"type": "object"})):
        program = compiled(schema)
        assert accepts(program, sample(program, random.Random(seed)))


def test_schema_check_says_what_is_wrong_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text('{"type": "boolean"}')
    bad.write_text('{"properties": {"a": {"not": {}}}}')
    assert check_files([good])
    assert not check_files([good, bad])
    said = capsys.readouterr().out
    assert f"{good}: supported" in said and "#/properties/a" in said


def test_schema_check_tries_a_schema_as_a_server_does(tmp_path: Path, capsys, monkeypatch) -> None:
    """Under limits, which the multiples of a large prime pass, of time or of memory; and shows those of a small one."""
    monkeypatch.setattr("overdrive.schema_check.Vetting", partial(Vetting, levels=(Level(1.0, 1, 0),)))
    for name, said, fine in (
        ("9999991", "the grammar cannot be used: compiling it takes", False),
        ("9973", "supported; for example\n  0", True),
    ):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"type": "integer", "multipleOf": int(name)}))
        assert check_files([file]) is fine
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(("schema", "said"), [(True, "supported"), (False, "it allows nothing")])
def test_a_schema_may_be_a_boolean(tmp_path: Path, capsys, schema: bool, said: str) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    assert check_files([file]) is schema
    assert said in capsys.readouterr().out


def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(OverdriveError, match="no text in UTF-8"):
        check_files([file])
