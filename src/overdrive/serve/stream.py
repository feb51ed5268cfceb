"""From the engine's messages to a response: whole, or as server-sent events, and the end of either when a client goes.

Knows HTTP and the order of events; what an event says is an endpoint's `Form`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from overdrive.errors import BadRequest
from overdrive.link import Reply
from overdrive.serve.answer import Answer, Delta, usage
from overdrive.serve.faults import error_value
from overdrive.serve.record import RequestRecord
from overdrive.serve.replies import Usage
from overdrive.serve.service import TimeLimit

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
CLIENT_GONE = 499  # nginx's code for a client that left; nobody reads it, logs show it
TOO_LATE = 504
_encode = msgspec.json.Encoder().encode


class Form(Protocol):
    """How an endpoint words its events and its whole answer."""

    def opening(self, answer: Answer) -> Iterable[msgspec.Struct]:
        """Events before an answer's first delta. The answer's prompt has been scored by then, if that was asked."""
        ...

    def event(self, answer: Answer, delta: Delta) -> msgspec.Struct | None:
        """The event of one delta; None where it would tell nothing."""
        ...

    def usage_event(self, used: Usage) -> msgspec.Struct:
        """The last event, for clients that want the usage."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP request under way: `answers` by the id of their engine request, n to a prompt.

    limit: when it is given up. sources: names of those who write drafts.
    """

    reply: Reply
    answers: dict[str, Answer]
    n: int
    record: RequestRecord
    limit: TimeLimit
    sources: Sequence[str]

    def __post_init__(self) -> None:
        self.record.submit()  # in the moment in which the engine has it, or it would take two places in the queue

    @property
    def usage(self) -> Usage:
        """What was used up to now."""
        return usage(list(self.answers.values()), self.n, self.sources)

    async def deltas(self) -> AsyncIterator[tuple[Answer, Delta]]:
        """What arrives, answer by answer. Raises ServerFault when one of them is given up."""
        reason = f"the answer was not complete after {self.limit.seconds:g} seconds, {self.limit.whose}"
        left = max(0.0, self.limit.seconds - self.record.age)
        alarm = asyncio.get_running_loop().call_later(left, self.reply.give_up, reason, TOO_LATE)
        try:
            async for item in self.reply:
                answer = self.answers[item.id]
                delta = answer.take(item)
                if delta.empty:
                    continue
                self.record.token(item.queued)
                if delta.finish is not None:
                    self.record.finishes[delta.finish] += 1
                yield answer, delta
        except BadRequest as fault:
            self.record.failed = fault.status
            raise
        finally:
            alarm.cancel()

    def close(self) -> None:
        """Nobody reads on: what still runs is aborted, what happened is counted."""
        self.reply.abort()
        record, used = self.record, self.usage
        record.prompt_tokens, record.output_tokens = used.prompt_tokens, used.completion_tokens
        record.cached_tokens = used.prompt_tokens_details.cached_tokens
        record.finish(len(self.answers))


async def collect(exchange: Exchange) -> dict[str, list[Delta]]:
    """All deltas of every answer."""
    deltas: dict[str, list[Delta]] = {name: [] for name in exchange.answers}
    names = {answer.index: name for name, answer in exchange.answers.items()}
    async for answer, delta in exchange.deltas():
        deltas[names[answer.index]].append(delta)
    return deltas


async def events(exchange: Exchange, form: Form, with_usage: bool) -> AsyncIterator[bytes]:
    """The stream as encoded events; after a fault in the middle, an event that says so."""
    opened: set[int] = set()
    try:
        async for answer, delta in exchange.deltas():
            if answer.index not in opened:
                opened.add(answer.index)
                for event in form.opening(answer):
                    yield sse(event)
            if (told := form.event(answer, delta)) is not None:
                yield sse(told)
        if with_usage:
            yield sse(form.usage_event(exchange.usage))
    except BadRequest as fault:
        if not opened:
            raise  # nothing has been sent: it can still be a plain error response
        yield sse(error_value(fault))
    yield DONE


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(value) + b"\n\n"


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Cancels it and raises ClientGone when the client leaves first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


class ClientGone(BadRequest):
    """The client closed the connection before its answer was complete."""

    def __init__(self) -> None:
        super().__init__("the client went away", "", "client_gone", CLIENT_GONE)


async def _disconnect(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


class EventStream(Response):
    """Server-sent events. The first is there before the response begins, so an early fault is not a broken stream.

    When the client leaves, `exchange` is closed at once, also while no event is due.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncIterator[bytes], exchange: Exchange) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._exchange.close()
            gone.cancel()
            pump.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for event in self._rest:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_response(request: Request, exchange: Exchange, form: Form, with_usage: bool) -> Response:
    """Starts the stream: waits for its first event while the client is there."""
    exchange.record.streamed = True
    rest = events(exchange, form, with_usage)
    try:
        first = await while_connected(request, _next(rest))
    except BaseException:
        exchange.close()
        raise
    return EventStream(first, rest, exchange)


async def _next(stream: AsyncIterator[bytes]) -> bytes:
    return await anext(stream)


async def whole_answers(request: Request, exchange: Exchange) -> dict[str, list[Delta]]:
    """All deltas of every answer, aborted when the client leaves first."""
    try:
        return await while_connected(request, collect(exchange))
    finally:
        exchange.close()


def json_response(value: msgspec.Struct) -> Response:
    """`value` as a JSON response."""
    return Response(_encode(value), media_type="application/json")
