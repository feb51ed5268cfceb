"""Errors as clients see them: OpenAI's shape, one clear line, the parameter at fault, never a traceback."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from fastapi import Response
from pydantic import ValidationError

from overdrive.errors import BadRequest

RETRY_SECONDS = {429: "1", 503: "5"}
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}

CODES = {429: "queue_full", 500: "engine_error", 503: "unavailable"}

_UNION_BRANCH = re.compile(r"(str|int|list\[.*|constrained-.*|nullable.*)$")


class ServerFault(BadRequest):
    """The request passed every check but cannot be answered: the engine failed or refused, or the server goes down."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message, code=CODES.get(status, "engine_refused"), status=status)


def error_value(fault: BadRequest) -> dict[str, Any]:
    """The error as the JSON value of OpenAI's shape."""
    kind = TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "server_error")
    return {"error": {"message": str(fault), "type": kind, "param": fault.param or None, "code": fault.code}}


def error_response(fault: BadRequest) -> Response:
    """The error as an HTTP response; 429 and 503 say when to come back."""
    retry = RETRY_SECONDS.get(fault.status)
    headers = {"Retry-After": retry} if retry else {}
    if fault.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode(error_value(fault))
    return Response(body, status_code=fault.status, headers=headers, media_type="application/json")


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
            path += f".{part}" if path else part
    return path


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return message[:1].lower() + message[1:]
