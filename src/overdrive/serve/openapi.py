"""The OpenAPI document: request models from pydantic, answers from msgspec, each defined once."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from overdrive.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SpeculationChange,
    TokenizeRequest,
)
from overdrive.serve.replies import ANSWERS

REF = "#/components/schemas/{model}"
REQUESTS: tuple[type[BaseModel], ...] = (
    *(ChatRequest, CompletionRequest),
    *(TokenizeRequest, DetokenizeRequest, SpeculationChange),
)
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
STREAM = "Server-sent events: each data is a chunk of the answer as JSON, or an error, and at last [DONE]."
FAULTS = {
    400: "A parameter is wrong; `param` names it.",
    401: "The API key is missing or wrong.",
    403: "Not allowed here: a page of another site, a name that is not this machine's, or a control that is off.",
    404: "No such model.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    429: "The queue is full.",
    500: "The engine failed on this request.",
    503: "The server is loading or draining.",
    504: "The answer took longer than the server allows.",
}


def body(
    request: type[BaseModel] | None, answer: str | None, streams: bool = False, media: str = "application/json"
) -> dict[str, Any]:
    """Arguments of a route decorator that describe its body and its answers."""
    content: dict[str, Any] = {media: {"schema": _ref(answer) if answer else {}}}
    if streams:
        content["text/event-stream"] = {"schema": {"description": STREAM}}
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "The answer.", "content": content}}
    faults = FAULTS if request else {code: FAULTS[code] for code in (401, 404, 503)}
    for status, text in faults.items():
        responses[status] = {"description": text, "content": {"application/json": {"schema": _ref("Error")}}}
    described: dict[str, Any] = {"responses": responses}
    if request is not None:
        schema = {"application/json": {"schema": _ref(request.__name__)}}
        described["openapi_extra"] = {"requestBody": {"required": True, "content": schema}}
    return described


def document(app: FastAPI) -> dict[str, Any]:
    """The whole document, with every schema that the routes refer to."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, requests = models_json_schema([(model, "validation") for model in REQUESTS], ref_template=REF)
        _, answers = msgspec.json.schema_components(ANSWERS, ref_template=REF.replace("model", "name"))
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        components |= requests["$defs"] | answers | {"Error": ERROR}
        app.openapi_schema = schema
    return app.openapi_schema


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(model=name)}
