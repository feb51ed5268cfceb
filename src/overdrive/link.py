"""The link between the HTTP process and the engine process: a socket for each end, and who waits for what comes.

Knows msgspec and zmq, and the messages (`wire.py`, which says what either side promises); nothing of HTTP, text or the
engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from overdrive.errors import OverdriveError
from overdrive.types import FinishReason
from overdrive.wire import (
    Abort,
    Batch,
    Drain,
    EngineInfo,
    Failed,
    FromEngine,
    Loading,
    Ready,
    Shift,
    Stats,
    Stop,
    Submit,
    ToEngine,
    Tokens,
)

MOST_UNREAD = 1 << 14  # messages kept for one reader; each is one step's tokens of one request
SLOW_CLIENT = 408
LINGER_MS = 1000  # how long a closing end may still deliver what it has sent


def _open(context: zmq.Context, bind: bool, address: str) -> Any:
    """A PAIR socket without a high-water mark: a slow reader costs memory, it never stops the engine's step."""
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    (socket.bind if bind else socket.connect)(address)
    return socket


class EngineEndpoint:
    """The engine's end of the link; used by one thread."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = _open(self._context, False, address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def poll(self, timeout: float = 0.0) -> list[ToEngine]:
        """All messages that have arrived, in order; waits up to `timeout` seconds for the first."""
        messages = []
        wait = int(timeout * 1000)
        while self._socket.poll(wait):
            messages.append(self._decoder.decode(self._socket.recv()))
            wait = 0
        return messages

    def send(self, message: FromEngine) -> None:
        """Queues one message; never blocks once the other end has been reached."""
        self._socket.send(self._encoder.encode(message))

    def close(self) -> None:
        """Delivers what was sent, waiting a second at most, and lets go of the socket."""
        self._socket.close()
        self._context.term()


class Reply:
    """What the engine answers to requests submitted together: an async iterator of their messages, as they come.

    It ends when every request has had its finish. `abort` must be called by whoever stops reading early; it is harmless
    afterwards.
    """

    def __init__(self, client: EngineClient, ids: list[str]) -> None:
        self._client = client
        self._unfinished = set(ids)
        self._arrived: asyncio.Queue[Tokens] = asyncio.Queue()

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> Tokens:
        if not self._unfinished:
            raise StopAsyncIteration
        item = await self._arrived.get()
        if item.finish is not None:
            self._unfinished.discard(item.id)
        return item

    def push(self, item: Tokens) -> None:
        """A message has come off the link. One too many that nobody has read ends the requests."""
        self._arrived.put_nowait(item)
        if self._arrived.qsize() == MOST_UNREAD:
            self.give_up("the client reads its answer too slowly", SLOW_CLIENT)

    def abort(self) -> None:
        """Tells the engine that nobody waits for these requests any more."""
        for request_id in self._unfinished:
            self._client.abort(request_id)

    def give_up(self, reason: str, status: int) -> None:
        """Aborts what has not finished; whoever reads gets `reason` as its error, of that HTTP status."""
        self.abort()
        for request_id in self._unfinished:
            self.push(Tokens(request_id, finish=FinishReason.ERROR, error=reason, status=status))


class EngineClient:
    """The HTTP process's end of the link; lives in one event loop, created and closed inside it.

    `run` reads the link until it is cancelled. `stats` is the newest `Stats`; `heard` counts the messages that
    have come: an engine tells its progress while it starts, and from then on its `Stats` twice a second, whatever it
    does. `failure` says why the engine is gone ("" while it is not); `draining` that it takes no more requests.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = _open(self._context, True, address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._replies: dict[str, Reply] = {}
        self._info: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._told = asyncio.Event()  # set when `stats` is replaced, and then replaced itself
        self._shifts = 0  # sent
        self.stats = Stats()
        self.heard = 0
        self.failure = ""
        self.draining = False

    @property
    def active(self) -> int:
        """Requests submitted and neither finished nor aborted."""
        return len(self._replies)

    async def run(self, on_loading: Callable[[Loading], None] = lambda _: None) -> None:
        """Takes messages off the link and hands them to whom they concern, until cancelled."""
        while True:
            message = self._decoder.decode(await self._socket.recv())
            self.heard += 1
            match message:
                case Batch():
                    for item in message.tokens:
                        self._deliver(item)
                case Stats():
                    self.stats = message
                    self._wake()
                case Loading():
                    on_loading(message)
                case Ready():
                    if not self._info.done():
                        self._info.set_result(message.info)
                case Failed():
                    self.fail(message.message)

    async def ready(self) -> EngineInfo:
        """Waits for the engine to have started. Raises OverdriveError with the engine's one line when it cannot."""
        return await asyncio.shield(self._info)

    async def next_stats(self) -> Stats:
        """Waits for the engine's next statistics, or for its end: then they are the last ones."""
        await self._told.wait()
        return self.stats

    def submit(self, requests: list[Submit]) -> Reply:
        """Sends requests whose answers are read together. When the engine is gone they end at once with an error."""
        ids = [request.id for request in requests]
        reply = Reply(self, ids)
        self._replies.update(dict.fromkeys(ids, reply))
        for request in requests:
            self._send(request)
        if self.failure:
            self.fail(self.failure)
        return reply

    def abort(self, request_id: str) -> None:
        """Tells the engine that `request_id` is not wanted any more; nothing when it has already finished."""
        if self._replies.pop(request_id, None) is not None:
            self._send(Abort(request_id))

    async def shift(self, speculation: str) -> str:
        """Tells the engine who decides how much is drafted; returns who does when it has heard that, or is gone: others
        may have told it something else since."""
        self._shifts += 1
        number = self._shifts
        self._send(Shift(speculation))
        while self.stats.shifts < number and not self.failure:
            await self.next_stats()
        return self.stats.speculation

    def drain(self) -> None:
        """Asks the engine to finish what it has and to end."""
        self.draining = True
        self._send(Drain())

    def stop(self) -> None:
        """Asks the engine to end now."""
        self._send(Stop())

    def fail(self, reason: str) -> None:
        """The engine is gone: whoever waits for it, for the start or for tokens, gets the first `reason` given."""
        self.failure = self.failure or reason
        if not self._info.done():
            self._info.set_exception(OverdriveError(self.failure))
            self._info.exception()  # else asyncio complains where nobody waits for the start any more
        self._wake()
        for request_id in list(self._replies):
            self._deliver(Tokens(request_id, finish=FinishReason.ERROR, error=self.failure))

    def close(self) -> None:
        """Delivers what was sent, waiting a second at most where the engine lives, and lets go of the socket."""
        self._socket.close(linger=0 if self.failure else LINGER_MS)
        self._context.term()

    def _wake(self) -> None:
        """Those who wait for statistics go on."""
        self._told.set()
        self._told = asyncio.Event()

    def _deliver(self, item: Tokens) -> None:
        reply = self._replies.get(item.id)
        if reply is None:
            return  # aborted meanwhile
        reply.push(item)
        if item.finish is not None:
            del self._replies[item.id]

    def _send(self, message: ToEngine) -> None:
        if not self.failure:
            self._socket.send(self._encoder.encode(message))  # completes at once: there is no high-water mark
