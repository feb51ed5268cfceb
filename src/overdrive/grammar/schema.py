"""JSON schemas, before they become grammars and when they cannot: made plain, and explained by keyword and place.

What a grammar would not enforce is refused, never ignored; what JSON Schema itself says has no effect is left out. The
library refuses without saying where: the place is found here. Knows schemas as values, never tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from overdrive.errors import BadRequest

Schema = Any
"""An object, or a boolean."""

IN_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
ALONE = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
"""Keywords whose values are schemas, or hold them."""

FORMATS = (
    *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
    *("uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer"),
    "regex",
)
"""Those that JSON Schema defines. A format that it does not know has no effect (2020-12 validation, 7.2.3)."""

_DATE = (
    r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "json-pointer": r"^(/([^/~]|~[01])*)*$",
    "relative-json-pointer": r"^(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)$",
}
"""Formats that the library lacks or takes too lightly: by its rules every year is a leap year, and any minute has a
leap second. Here none has."""

NOT_ENFORCED = (
    *("not", "if", "contains", "uniqueItems", "propertyNames", "dependencies", "dependentRequired"),
    *("dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
)
"""Keywords that no grammar here keeps."""

ENFORCED_FORMATS = ("duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", *PATTERNS)

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

GUIDANCE = "x-guidance"
LAYOUT = {
    "whitespace_flexible": "True|False",
    "item_separator": r"[ \t\r\n]*,[ \t\r\n]*",
    "key_separator": r"[ \t\r\n]*:[ \t\r\n]*",
}
"""What schemas may say in it. The rest (`lenient`, `coerce_one_of`, ..) would have keywords ignored, or text that is no
JSON: it has no effect, since schemas may come from strangers to whoever relies on them."""

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def plain(schema: Schema) -> Schema:
    """The same constraint in words that the library has. Parts that are not schemas are left as they are."""
    if not isinstance(schema, dict):
        return schema
    found = {key: _inner(key, value) for key, value in schema.items()}
    for name, parts in (("if", ("then", "else")), ("contains", ("minContains", "maxContains"))):
        if name not in found:  # these have an effect together only
            found = {key: value for key, value in found.items() if key not in parts}
    if "if" in found and not ("then" in found or "else" in found):
        del found["if"]
    for key in COUNTS:
        if isinstance(found.get(key), float) and found[key].is_integer():
            found[key] = int(found[key])
    if GUIDANCE in found:
        found[GUIDANCE] = _layout(found[GUIDANCE])
    if found.get("uniqueItems") is False:
        del found["uniqueItems"]
    form = found.get("format")
    if isinstance(form, str) and form not in FORMATS:
        del found["format"]
    elif form in PATTERNS and "pattern" not in found:
        del found["format"]
        found["pattern"] = PATTERNS[form]
    return found


def _layout(asked: Any) -> dict[str, Any]:
    """Of what a schema asks for in the library's own keyword, that which is layout, and JSON then."""
    given = asked if isinstance(asked, dict) else {}
    return {key: value for key, value in given.items() if key in LAYOUT and re.fullmatch(LAYOUT[key], str(value))}


def _inner(key: str, value: Any) -> Any:
    if key in IN_MAPS and isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if key in IN_LISTS and isinstance(value, list):
        return [plain(part) for part in value]
    return plain(value) if key in ALONE else value


def places(schema: Schema, pointer: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within one, itself first, with its JSON pointer."""
    if not isinstance(schema, dict):
        return
    yield pointer, schema
    for _, at, part in parts(schema, pointer):
        yield from places(part, at)


def parts(schema: dict[str, Any], pointer: str) -> Iterator[tuple[str, str, Schema]]:
    """The schemas right within one: keyword, pointer, and each itself."""
    for key, value in schema.items():
        at = f"{pointer}/{_escaped(key)}"
        if key in IN_MAPS and isinstance(value, dict):
            for name, part in value.items():
                yield key, f"{at}/{_escaped(name)}", part
        elif key in IN_LISTS and isinstance(value, list):
            for index, part in enumerate(value):
                yield key, f"{at}/{index}", part
        elif key in ALONE:
            yield key, at, value


def check_schema(schema: Schema) -> None:
    """Raises BadRequest, naming keyword and place, for what no answer can be held to, wherever the schema reaches it.

    Cheap, and not the last word: whether schemas exclude or meet each other is found when they are compiled.
    """
    for pointer, part in _reached(plain(schema)):
        for key in NOT_ENFORCED:
            if key in part:
                raise BadRequest(f"JSON schema: not supported: {key!r} at {pointer}")
        form, kind = part.get("format"), part.get("type", "object")
        if form is not None and form not in ENFORCED_FORMATS:
            raise BadRequest(f"JSON schema: 'format' {form!r} at {pointer} is not supported")
        if not all(one in TYPES for one in (kind if isinstance(kind, list) else [kind])):
            raise BadRequest(f"JSON schema: 'type' {kind!r} at {pointer} is no type")


def _reached(schema: Schema) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema that takes part in the root one, once: of definitions those that are referred to."""
    every = dict(places(schema))
    waiting, seen = ["#"], set()
    while waiting:
        pointer = waiting.pop()
        part = every.get(pointer)
        if part is None or pointer in seen:
            continue
        seen.add(pointer)
        yield pointer, part
        if isinstance(part.get("$ref"), str):
            waiting.append(part["$ref"])
        inner = [at for key, at, _ in parts(part, pointer) if key not in ("$defs", "definitions")]
        waiting += reversed(inner)


def explain(schema: Schema, said: str) -> str:
    """What the library said of a schema, in words of our own and with keyword and place; "" where there are none."""
    for pattern, tell in _EXPLAINED:
        found = re.search(pattern, said)
        told = tell(schema, found) if found else ""
        if told:
            return told
    return ""


def _unimplemented(schema: Schema, found: re.Match[str]) -> str:
    keys = json.loads(f"[{found[1]}]")
    at = [f"{key!r} at {place}" for key in keys if (place := _having(schema, key))]
    return f"JSON schema: not supported: {', '.join(at)}" if at else ""


def _of_keyword(key: str, reason: str) -> Callable[[Schema, re.Match[str]], str]:
    def tell(schema: Schema, _: re.Match[str]) -> str:
        place = _having(schema, key)
        return f"JSON schema: {key!r} at {place} {reason}" if place else ""

    return tell


def _of_value(key: str, reason: str) -> Callable[[Schema, re.Match[str]], str]:
    """The pattern's first group is the keyword's value."""

    def tell(schema: Schema, found: re.Match[str]) -> str:
        place = _first(schema, lambda part: str(part.get(key)).startswith(found[1]))
        return f"JSON schema: {key!r} {found[1]!r} at {place} {reason}" if place else ""

    return tell


_EXPLAINED: tuple[tuple[str, Callable[[Schema, re.Match[str]], str]], ...] = (
    (r"Unimplemented keys: \[(.*?)\]", _unimplemented),
    (r"Unknown format: (\S+)", _of_value("format", "is not supported")),
    (r"oneOf constraints", _of_keyword("oneOf", "is supported only where no two of its schemas can hold at once")),
    (r"patternProperty regexes (.*) are not disjoint", _of_keyword("patternProperties", "must not overlap")),
    (r"min/maxProperties", _of_keyword("minProperties", "needs all properties that are named to be required")),
    (r"min/maxProperties", _of_keyword("maxProperties", "needs all properties that are named to be required")),
    (r"Resource '([^']+)' is not present", _of_value("$ref", "is not in the schema itself")),
    (r"Anchor '([^']+)' does not exist", _of_value("$ref", "is not in the schema itself")),
    (r"Invalid type: (\S+)", _of_value("type", "is no type")),
)


def _having(schema: Schema, key: str) -> str:
    """Pointer to the first schema within one that has this keyword; "" where none does."""
    return _first(schema, lambda part: key in part)


def _first(schema: Schema, fits: Callable[[dict[str, Any]], bool]) -> str:
    """Pointer to the first schema within one that fits; "" where none does."""
    return next((pointer for pointer, part in places(schema) if fits(part)), "")


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
