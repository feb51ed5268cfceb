"""Values from outside: a base for strict models, and what is said when a value does not fit one."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, ValidationError

from overdrive.errors import BadRequest

MAX_SHOWN = 100  # characters of a field's name in a message
_UNION_BRANCH = re.compile(
    r"(str|int|list\[.*|constrained-.*|nullable.*|literal\[.*|dict\[.*|NamedTool|AllowedChoice)$"
)


class Model(BaseModel):
    """Strict base: no coercion between types, no NaN, no unknown field (unless the server is lenient).

    The parser's cache of strings is off: it would keep thousands of texts of clients that left long ago.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", cache_strings="none")


def invalid(error: ValidationError) -> BadRequest:
    """The first fault that validation found; where a field has several possible types, that of the nearest one.

    Nearest is the type whose kind is right and whose content is not, then the one that fails deepest.
    """
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        return BadRequest(f"the body is not valid JSON: {faults[0]['msg'].removeprefix('Invalid JSON: ')}", "")
    same_field = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    fault = max(same_field, key=lambda fault: (not fault["type"].endswith("_type"), len(fault["loc"])))
    param = _path(fault["loc"])
    if fault["type"] == "extra_forbidden":
        return BadRequest(f"unknown field: {param}", param, code="unknown_parameter")
    if fault["type"] == "missing":
        return BadRequest(f"missing field: {param}", param, code="missing_required_parameter")
    return BadRequest(f"{param or 'body'}: {_plain(fault['msg'])}", param)


def _path(loc: tuple[int | str, ...]) -> str:
    """('messages', 0, 'content', 'str') -> 'messages[0].content': names of union branches are not part of the path."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_BRANCH.match(part):
            path += f".{_shown(part)}" if path else _shown(part)
    return path


def _shown(name: str) -> str:
    """A client's own word, so that no line break, control sequence or megabyte of it gets into messages and logs."""
    return name[:MAX_SHOWN] if name.isprintable() else repr(name[:MAX_SHOWN])[1:-1]


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ").removeprefix("Input ").replace(" after validation", "")
    return message[:1].lower() + message[1:]
