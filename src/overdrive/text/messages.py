"""Chat messages in OpenAI's shape, checked and brought into the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.errors import BadRequest
from overdrive.json_text import parse_json


class Arguments(dict[str, Any]):
    """Arguments of an earlier call: an object, and where a template puts it into text as it is, its JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __radd__(self, text: str) -> str:
        return text + str(self)

    def __add__(self, text: str) -> str:
        return str(self) + text


_ROLES = ("system", "developer", "user", "assistant", "tool")


def normalised(messages: Sequence[Mapping[str, Any]], knows_developer: bool) -> list[dict[str, Any]]:
    """`messages` with content as one string each and tool arguments as objects.

    knows_developer: whether the template has the role "developer"; else such a message is a system message.
    Raises BadRequest, naming the place, for anything that is no text chat.
    """
    if not messages:
        raise BadRequest("messages must hold at least one message", "messages")
    return [_message(message, f"messages[{index}]", knows_developer) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], place: str, knows_developer: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadRequest(f"{place} must be an object with a role and content", place)
    role = message.get("role")
    if role not in _ROLES:
        raise BadRequest(f"{place}.role must be one of {', '.join(_ROLES)}, not {role!r}", f"{place}.role")
    if role == "developer" and not knows_developer:
        role = "system"
    kept = {key: value for key, value in message.items() if value is not None}
    kept |= {"role": role, "content": _content(message.get("content"), f"{place}.content")}
    if "tool_calls" in kept:
        calls = kept["tool_calls"]
        if not isinstance(calls, list):
            raise BadRequest(f"{place}.tool_calls must be a list", f"{place}.tool_calls")
        kept["tool_calls"] = [_tool_call(call, f"{place}.tool_calls[{n}]") for n, call in enumerate(calls)]
    if role == "user" and message.get("content") is None:
        raise BadRequest(f"{place}.content is missing", f"{place}.content")
    return kept


def _content(content: Any, place: str) -> str:
    """One string: the text parts of a list are joined by newlines, no content at all is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{place} must be a string or a list of parts", place)
    return "\n".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "refusal"):
        raise BadRequest(f"{place} is of type {kind!r}; this model reads text parts only", place)
    text = part.get(kind)
    if not isinstance(text, str):
        raise BadRequest(f"{place}.{kind} must be a string", f"{place}.{kind}")
    return text


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    """A call with its arguments parsed: clients send them as a JSON string, most templates want the object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{place} must hold a function with a name", place)
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise BadRequest(f"{place}.function.arguments is no valid JSON: {error}", f"{place}.function") from error
    if not isinstance(arguments, Mapping):
        raise BadRequest(f"{place}.function.arguments must be a JSON object", f"{place}.function")
    return {**call, "function": {**function, "arguments": Arguments(arguments)}}
