"""What stands in front of every route, as plain ASGI: it neither buffers streams nor hides a client's disconnect."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overdrive.errors import BadRequest
from overdrive.serve.entrance import Hold
from overdrive.serve.faults import ServerFault, error_response
from overdrive.serve.keys import loopback
from overdrive.serve.record import RequestRecord, request_id
from overdrive.serve.service import Gate

OPEN_PATHS = frozenset({"/", "/health", "/ready"})  # a browser and a load balancer have no key; none shows any text
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
Ended = Callable[[Scope, int, RequestRecord], None]
"""Told of every request that has ended: its scope, the status it was answered with (0: none) and its record."""


class Authorise:
    """Asks for `Authorization: Bearer KEY`; compares with every key in constant time, so that none is betrayed."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._keys = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(scope):
            await self._app(scope, receive, send)
            return
        fault = BadRequest("missing or wrong API key: send it as a bearer token", "", "invalid_api_key", 401)
        await _refuse(fault, scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        kind, _, token = _header(scope, b"authorization").partition(b" ")
        given = _digest(token.strip())
        known = [hmac.compare_digest(given, key) for key in self._keys]
        return kind.lower() == b"bearer" and any(known)


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()  # of one length, whatever was sent


class OwnPages:
    """Refuses what pages of other sites ask for: browsers send such requests, even where they hide the answer.

    Browsers say where a request comes from, in one header where they trust the address and in another elsewhere; other
    clients say nothing. Origins that were named may ask.
    """

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS or not self._foreign(scope):
            await self._app(scope, receive, send)
            return
        fault = BadRequest("pages of this origin may not call here; see --cors-origin", "", "foreign_origin", 403)
        await _refuse(fault, scope, receive, send)

    def _foreign(self, scope: Scope) -> bool:
        origin, site = (_header(scope, name).decode("latin-1") for name in (b"origin", b"sec-fetch-site"))
        if self._origins & {origin, "*"}:
            return False
        if site:
            return site in ("cross-site", "same-site")
        return bool(origin) and urlsplit(origin).netloc != _header(scope, b"host").decode("latin-1")


class KnownHosts:
    """Refuses requests that address this machine by a name that is not its own.

    A page may have its own name resolve to the loopback address (DNS rebinding) and is then of the same origin as the
    server, which a browser lets it read from. The name that it used is in `Host`.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._knows(_header(scope, b"host").decode("latin-1").lower()):
            await self._app(scope, receive, send)
            return
        fault = BadRequest("this server does not answer to that name; see --allowed-host", "", "unknown_host", 403)
        await _refuse(fault, scope, receive, send)

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return not host or loopback(name) or bool(self._names & {name, "*"})


async def _refuse(fault: BadRequest, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers in place of the route, and has the request's record say why."""
    if record := scope.get("state", {}).get("record"):
        record.fault = fault.code
    await error_response(fault)(scope, receive, send)


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


class Observe:
    """Gives every request its record, every answer its id and headers of safety, and tells of both at the end.

    An answer that fails is a 500 that says nothing of the inside. Paths without a route count as one, so that clients
    cannot grow the table of metrics.
    """

    def __init__(
        self, app: ASGIApp, gate: Gate, watchers: Sequence[Ended], broken: Callable[[RequestRecord, Exception], None]
    ) -> None:
        self._app = app
        self._gate = gate
        self._watchers = watchers
        self._broken = broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id(scope), self._gate.metrics, Hold(self._gate.entrance))
        scope["state"] = {**scope.get("state", {}), "record": record}
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope, status)
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = record.id
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            self._broken(record, error)
            if status:
                raise  # the server closes the connection: what has begun cannot end well
            await error_response(ServerFault("internal error; the server's log has more"))(scope, receive, watched)
        finally:
            record.hold.release()
            if not status:
                self._count(scope, status)
            for told in self._watchers:
                told(scope, status, record)

    def _count(self, scope: Scope, status: int) -> None:
        self._gate.metrics.requests.labels(route(scope), str(status)).inc()


def route(scope: Scope) -> str:
    """The path of the route that answered, or would have if the request had not been refused before; as declared."""
    found = scope.get("route")
    if found is None and "app" in scope:
        found = next((one for one in scope["app"].routes if one.matches(scope)[0] is Match.FULL), None)
    return getattr(found, "path", "other")


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
