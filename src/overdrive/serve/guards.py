"""What stands in front of every route, as plain ASGI: it neither buffers streams nor hides a client's disconnect."""

from __future__ import annotations

import asyncio
import hmac

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overdrive.errors import BadRequest
from overdrive.serve.faults import ServerFault, error_response

OPEN_PATHS = frozenset({"/", "/health"})  # a browser and a load balancer have no key; neither shows any text


class Authorise:
    """Asks for `Authorization: Bearer KEY`; compares in constant time, so that answers do not betray the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(scope):
            await self._app(scope, receive, send)
            return
        fault = BadRequest("missing or wrong API key: send it as a bearer token", "", "invalid_api_key", 401)
        await error_response(fault)(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, token = given.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._key)


class CountRequests:
    """Counts responses by endpoint and status; paths without a route count as one, so clients cannot grow the table."""

    def __init__(self, app: ASGIApp, counter: Counter) -> None:
        self._app = app
        self._counter = counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                self._counter.labels(getattr(route, "path", "other"), str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


class EndQuietly:
    """A request that the server cancels as it goes down, its body never whole, is answered with 503 at last.

    uvicorn would otherwise log the cancellation as a failure of the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if begun:
                raise
            await error_response(ServerFault("the server is shutting down", status=503))(scope, receive, send)
