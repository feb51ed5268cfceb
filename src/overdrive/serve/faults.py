"""Errors as clients see them: OpenAI's shape, one clear line, the parameter at fault, never a traceback."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Response

from overdrive.errors import BadRequest

RETRY_SECONDS = {429: 1, 503: 5}  # where nobody knows better
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}

CODES = {
    400: "invalid_value",
    408: "slow_client",
    429: "queue_full",
    500: "engine_error",
    503: "unavailable",
    504: "timeout",
}


class ServerFault(BadRequest):
    """The request passed every check but cannot be answered: the engine failed, refused or took too long, or the server
    goes down."""

    def __init__(self, message: str, status: int = 500, param: str = "", code: str = "") -> None:
        """code: by default the one that the status has."""
        super().__init__(message, param, code=code or CODES.get(status, "engine_refused"), status=status)


def error_value(fault: BadRequest) -> dict[str, Any]:
    """The error as the JSON value of OpenAI's shape."""
    kind = TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "server_error")
    return {"error": {"message": str(fault), "type": kind, "param": fault.param or None, "code": fault.code}}


def error_response(fault: BadRequest, retry_after: int = 0) -> Response:
    """The error as an HTTP response; 429 and 503 say when to come back."""
    retry = retry_after or RETRY_SECONDS.get(fault.status)
    headers = {"Retry-After": str(retry)} if retry else {}
    if fault.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode(error_value(fault))
    return Response(body, status_code=fault.status, headers=headers, media_type="application/json")
