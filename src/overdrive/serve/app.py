"""The HTTP application: routes, what stands in front of them, and the OpenAPI document.

Bodies are read and validated here rather than by FastAPI: with a size limit, strictly, with errors in OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from overdrive import __version__
from overdrive.draft_report import engine_report
from overdrive.errors import BadRequest
from overdrive.parameters import check_ids
from overdrive.serve.chat import chat_completion
from overdrive.serve.completions import text_completion
from overdrive.serve.faults import error_response
from overdrive.serve.guards import Authorise, Ended, EndQuietly, KnownHosts, Observe, OwnPages
from overdrive.serve.keys import loopback
from overdrive.serve.logs import log_failure, log_request
from overdrive.serve.openapi import body, document
from overdrive.serve.page.routes import add_page
from overdrive.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SpeculationChange,
    TokenizeRequest,
)
from overdrive.serve.record import record_of
from overdrive.serve.replies import Detokenized, ModelCard, ModelList, SpeculationSetting, Tokenized
from overdrive.serve.service import Closed, Gate, Service, off_loop
from overdrive.serve.stream import ClientGone, json_response
from overdrive.strict import Model, invalid
from overdrive.tooled import Tooled, tool_use
from overdrive.tools.style import ChatStyle
from overdrive.tools.turn import Asked

M = TypeVar("M", bound=Model)
BODY_SECONDS = 60
MAX_METHOD = 20  # characters of a method's name in a message
MAX_PATH = 100  # characters of a path in a message
NO_CONTROL = "only a server started with --speculation-control lets this be changed"
ELSEWHERE = {
    "reasoning_effort": "what the model's template knows of it goes into chat_template_kwargs, "
    'such as {"enable_thinking": false}; '
}
"""What stock clients send, and how the same is said here."""


def create_app(gate: Gate, watchers: Sequence[Ended] = (log_request,)) -> FastAPI:
    """The application in front of `gate`. watchers: told of every request that has ended."""
    app = FastAPI(title="Overdrive", version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app, gate)
    _add_generation(app, gate)
    _add_text(app, gate)
    _add_state(app, gate)
    _add_control(app, gate)
    add_page(app, gate)
    origins = list(gate.options.cors_origin)
    app.add_middleware(OwnPages, origins=origins)
    if gate.options.api_key:
        app.add_middleware(Authorise, keys=gate.options.api_key)
    elif loopback(gate.options.host):
        app.add_middleware(KnownHosts, names=gate.options.allowed_host)
    if origins:
        exposed = ["X-Request-Id", "Retry-After"]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
        )
    app.add_middleware(EndQuietly)
    app.add_middleware(Observe, gate=gate, watchers=watchers, broken=log_failure)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


async def read_body(request: Request, model: type[M], gate: Gate) -> M:
    """The request's body as `model`. Raises BadRequest: 413 when it is too large, 400 when it is not valid.

    Raises ClientGone when the client leaves in the middle of it.
    """
    limit = gate.options.max_body_bytes
    declared = request.headers.get("content-length", "0")
    data, hold = bytearray(), record_of(request).hold
    if not declared.isdigit() or int(declared) <= limit:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    hold.add(len(chunk))
                    data += chunk
                    if len(data) > limit:
                        break
        except TimeoutError:
            raise BadRequest(f"the body did not arrive within {BODY_SECONDS} seconds", "", "timeout", 408) from None
        except ClientDisconnect:
            raise ClientGone from None
    if len(data) > limit or (declared.isdigit() and int(declared) > limit):
        size = max(len(data), int(declared) if declared.isdigit() else 0)
        raise BadRequest(f"the body has {size} bytes or more, the limit is {limit}", "", "request_too_large", 413)
    try:
        return model.model_validate_json(bytes(data), extra="ignore" if gate.options.lenient else "forbid")
    except ValidationError as error:
        raise _explained(invalid(error)) from None


def _explained(fault: BadRequest) -> BadRequest:
    """The fault as it is; where a field is unknown, with what can be done about it."""
    if fault.code != "unknown_parameter":
        return fault
    advice = ELSEWHERE.get(fault.param, "") + "a server started with --lenient ignores fields that it does not know"
    return BadRequest(f"{fault}; {advice}", fault.param, fault.code)


async def _let_in(request: Request, model: type[M], gate: Gate) -> tuple[M, Service]:
    """The body of a request that there is room for: asked before it has come, and again before it costs work."""
    service = gate.service()
    service.check_room()
    asked = await read_body(request, model, gate)
    service.check_room(ahead=gate.entrance.preparing)
    record_of(request).hold.prepare()
    return asked, service


def _add_generation(app: FastAPI, gate: Gate) -> None:
    @app.post("/v1/chat/completions", **body(ChatRequest, "ChatCompletion", streams=True))
    async def chat_completions(request: Request) -> Response:
        """The assistant's next turn, whole or as server-sent events."""
        asked, service = await _let_in(request, ChatRequest, gate)
        return await chat_completion(request, asked, service)

    @app.post("/v1/completions", **body(CompletionRequest, "Completion", streams=True))
    async def completions(request: Request) -> Response:
        """The continuation of one or more prompts, whole or as server-sent events."""
        asked, service = await _let_in(request, CompletionRequest, gate)
        return await text_completion(request, asked, service)


def _add_text(app: FastAPI, gate: Gate) -> None:
    @app.post("/tokenize", **body(TokenizeRequest, "Tokenized"))
    async def tokenize(request: Request) -> Response:
        """Token ids of a text, or of messages behind the chat template."""
        service = gate.service()
        asked = await read_body(request, TokenizeRequest, gate)
        service.check_model(asked.model)
        ids = await off_loop(lambda: _token_ids(asked, service))
        reply = Tokenized(count=len(ids), max_model_len=service.info.max_model_len, tokens=ids)
        if asked.return_token_strs:
            reply.token_strs = [service.tokenizer.bytes_of(i).decode("utf-8", errors="replace") for i in ids]
        return json_response(reply)

    @app.post("/detokenize", **body(DetokenizeRequest, "Detokenized"))
    async def detokenize(request: Request) -> Response:
        """Text of token ids, special tokens by name."""
        service = gate.service()
        asked = await read_body(request, DetokenizeRequest, gate)
        service.check_model(asked.model)
        check_ids(asked.tokens, service.info.vocab_size, "tokens")
        return json_response(Detokenized(service.tokenizer.decode(asked.tokens, skip_special=False)))


def _token_ids(asked: TokenizeRequest, service: Service) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise BadRequest("send either prompt or messages", "prompt")
    if asked.messages is not None:
        chat = Asked(
            messages=[message.model_dump(exclude_none=True) for message in asked.messages],
            use=tool_use(Tooled(tools=asked.tools)),
            names=asked.chat_template_kwargs,
            open_turn=asked.add_generation_prompt is not False,
        )
        return service.prepare(chat).prompt
    return service.tokenizer.encode(asked.prompt or "", add_special=asked.add_special_tokens is not False)


def _add_state(app: FastAPI, gate: Gate) -> None:
    @app.get("/v1/models", **body(None, "ModelList"))
    async def models() -> Response:
        """The one model served here."""
        return json_response(ModelList(data=[_card(gate.service())]))

    @app.get("/v1/models/{name:path}", **body(None, "ModelCard"))
    async def model(name: str) -> Response:
        """The model, by the name that clients use."""
        service = gate.service()
        service.check_model(name)
        return json_response(_card(service))

    @app.head("/health", include_in_schema=False)
    @app.get("/health", **body(None, None))
    async def health() -> Response:
        """200 when requests are answered; 503 while loading, draining or without an engine."""
        try:
            gate.service()
        except BadRequest as fault:
            return _not_ready(_status(gate), fault)
        return Response(json.dumps({"status": "ready"}), media_type="application/json")

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", **body(None, None))
    async def ready() -> Response:
        """200 when a request sent now would be taken; 503 also while the queue is full."""
        try:
            gate.service().check_room()
        except BadRequest as fault:
            return _not_ready("busy" if fault.status == 429 else _status(gate), fault)
        return Response(json.dumps({"status": "ready"}), media_type="application/json")

    @app.get("/metrics", **body(None, None, media="text/plain"))
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(gate.report(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/server_info", **body(None, None))
    async def server_info() -> Response:
        """What runs: the model, the engine's resolved numbers, the drafter, and how drafting went."""
        service = gate.service()
        facts = {
            "version": __version__,
            "model": service.name,
            "engine": msgspec.structs.replace(service.info, source=Path(service.info.source).name),
            "chat": _chat_report(service.style),
            "drafts": engine_report(service.client.stats),
            "stats": service.client.stats,
        }
        return Response(msgspec.json.encode(facts), media_type="application/json")


def _add_control(app: FastAPI, gate: Gate) -> None:
    @app.get("/speculation", **body(None, "SpeculationSetting"))
    async def speculation() -> Response:
        """Who decides how much is drafted."""
        return json_response(SpeculationSetting(gate.service().client.stats.speculation))

    @app.put("/speculation", **body(SpeculationChange, "SpeculationSetting"))
    async def shift(request: Request) -> Response:
        """Let somebody else decide how much is drafted, for all requests. Answered when it is so."""
        if not gate.options.speculation_control:
            raise BadRequest(NO_CONTROL, "", "not_allowed", 403)
        service = gate.service()
        asked = await read_body(request, SpeculationChange, gate)
        return json_response(SpeculationSetting(await service.shift(asked.speculation)))


def _chat_report(style: ChatStyle) -> dict[str, Any]:
    """How chats are written: the form of tool calls, and the markers of reasoning where the model has it."""
    thinking = style.thinking
    return {
        "tool_format": style.form.name,
        "template_shows_tools": style.shows.tools,
        "reasoning": [thinking.open, thinking.close] if thinking else None,
    }


def _card(service: Service) -> ModelCard:
    return ModelCard(id=service.name, created=service.created, max_model_len=service.info.max_model_len)


def _status(gate: Gate) -> str:
    if isinstance(gate.state, Closed):
        return gate.state.status
    return "failed" if gate.state.client.failure else "ready"


def _not_ready(status: str, fault: BadRequest) -> Response:
    """What probes get, with the reason in words for whoever looks himself."""
    value = {"status": status, "reason": str(fault)}
    return Response(json.dumps(value), status_code=503, media_type="application/json")


def _methods(app: FastAPI, path: str) -> str:
    """What a path takes, by all of its routes: each of them alone knows its own."""
    routes = (route for route in app.routes if isinstance(route, Route) and route.path == path)
    return ", ".join(sorted({method for route in routes for method in route.methods or ()}))


def _no_such(app: FastAPI, path: str) -> str:
    """Clients' base addresses differ in whether /v1 is part of them: it is often missing, or there twice."""
    likely = [near for near in (f"/v1{path}", path.removeprefix("/v1")) if near != path and _methods(app, near)]
    hint = f"; there is {likely[0]}" if likely else ""
    return f"there is nothing at {path[:MAX_PATH]!r}{hint}"


def _add_errors(app: FastAPI, gate: Gate) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, BadRequest)
        record_of(request).fault = error.code
        return error_response(error, gate.retry_after(error.status))

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers, fault = error.headers or {}, BadRequest(str(error.detail), "", "not_found", error.status_code)
        if error.status_code == 404:
            fault = BadRequest(_no_such(app, request.scope["path"]), "", "not_found", 404)
        elif error.status_code == 405:
            headers = {**headers, "Allow": _methods(app, request.url.path) or headers.get("Allow", "")}
            taken = f"{request.method[:MAX_METHOD]} is not what this path takes, which is {headers['Allow']}"
            fault = BadRequest(taken, "", "method_not_allowed", 405)
        record_of(request).fault = fault.code
        response = error_response(fault)
        response.headers.update(headers)
        return response

    app.add_exception_handler(BadRequest, refused)
    app.add_exception_handler(HTTPException, no_route)
