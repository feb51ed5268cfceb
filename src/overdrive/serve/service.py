"""What the endpoints stand on once the engine is ready, and the gate that keeps requests out before and after.

The gate holds one value: `Closed` with a reason, or the `Service`. Handlers ask it once, at the head of a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from overdrive.config import ServerOptions
from overdrive.errors import BadRequest
from overdrive.link import EngineClient, Reply
from overdrive.policy.lever import fixed_by
from overdrive.serve.entrance import Entrance
from overdrive.serve.faults import ServerFault
from overdrive.serve.metrics import Metrics
from overdrive.text import ChatTemplate, Tokenizer
from overdrive.tools.style import ChatStyle
from overdrive.tools.turn import Asked, Turn, prepare
from overdrive.types import SamplingParams
from overdrive.wire import EngineInfo, Submit

T = TypeVar("T")
RETRY_SECONDS = 5  # for a server that loads, drains or starts its engine again
SHIFT_SECONDS = 30.0  # a step may be long
GRACE_SECONDS = 0.5  # after its deadline a request is given up by the engine itself, should this process be late


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long a request may take from its arrival, and whose word that is."""

    seconds: float
    whose: str


@dataclass(frozen=True, slots=True)
class Service:
    """A ready engine with the text room of its model.

    style: how the model's chats are written. name: what clients call the model. request_seconds: after these an answer
    is given up. created: Unix time.
    """

    client: EngineClient
    info: EngineInfo
    tokenizer: Tokenizer
    template: ChatTemplate
    style: ChatStyle
    name: str
    request_seconds: float
    created: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, name: str | None) -> None:
        """Raises BadRequest (404) for a model that is not served here."""
        if name is not None and name != self.name:
            message = f"the model {name[:200]!r} does not exist; this server has {self.name!r}"
            raise BadRequest(message, "model", "model_not_found", 404)

    def prepare(self, asked: Asked) -> Turn:
        """Prompt and grammar of a chat's next turn. Raises BadRequest."""
        return prepare(asked, self.style, self.template, self.tokenizer)

    @property
    def waiting(self) -> int:
        """About how many requests wait for a row."""
        return max(0, self.client.active - self.info.max_rows)

    def check_room(self, answers: int = 1, ahead: int = 0) -> None:
        """Raises BadRequest (429) when the queue has no room for so many answers, with `ahead` more before them."""
        capacity = self.info.max_rows + self.info.max_queue
        if answers > capacity:
            raise BadRequest(f"n: {answers} answers at once, the server takes {capacity} at most", "n")
        if self.client.active + ahead + answers > capacity:
            raise BadRequest("the queue is full, try again later", "", "queue_full", 429)

    def limit(self, asked: float | None) -> TimeLimit:
        """How long a request may take: the shorter of what it asks for and what the server allows."""
        if asked is None or asked >= self.request_seconds:
            return TimeLimit(self.request_seconds, "which is this server's limit")
        return TimeLimit(asked, "which is the request's timeout_seconds")

    async def shift(self, speculation: str) -> str:
        """Changes who decides how much is drafted; returns who does then, which is somebody else where another change
        came right behind. Raises BadRequest, see `policy.lever`, and ServerFault where the engine is gone (503) or does
        not answer (504)."""
        fixed_by(speculation, self.info.speculation, self.info.drafts)
        try:
            async with asyncio.timeout(SHIFT_SECONDS):
                decides = await self.client.shift(speculation)
        except TimeoutError:
            raise ServerFault("the engine does not answer", status=504) from None
        if self.client.failure:
            raise ServerFault(self.client.failure, status=503)
        return decides

    def submit(
        self, answer_ids: list[str], prompts: list[list[int]], params: list[SamplingParams], seconds: float
    ) -> Reply:
        """Sends one engine request per answer, to be given up after `seconds`.

        Raises BadRequest (429) when the queue has no room for all of them.
        """
        if self.client.failure or self.client.draining:
            raise ServerFault(self.client.failure or "the server is shutting down", status=503)
        self.check_room(len(answer_ids))
        now, deadline = time.time(), max(0.0, seconds) + GRACE_SECONDS
        triples = zip(answer_ids, prompts, params, strict=True)
        return self.client.submit([Submit(name, prompt, drawn, now, deadline) for name, prompt, drawn in triples])


@dataclass(frozen=True, slots=True)
class Closed:
    """No requests now: the engine loads, drains or is gone. `status` is the word that /health shows."""

    status: str
    reason: str


@dataclass(slots=True)
class Gate:
    """The door of the server. `state` is the only thing here that changes."""

    options: ServerOptions
    metrics: Metrics
    state: Service | Closed = Closed("loading", "the model is loading")
    entrance: Entrance = field(init=False)

    def __post_init__(self) -> None:
        self.entrance = Entrance(self.options.max_body_bytes)

    def service(self) -> Service:
        """The ready service. Raises ServerFault (503) while there is none."""
        if isinstance(self.state, Closed):
            raise ServerFault(self.state.reason, status=503)
        if self.state.client.failure:
            raise ServerFault(self.state.client.failure, status=503)
        return self.state

    def report(self) -> bytes:
        """Everything that is counted, in Prometheus' text format."""
        service = None if isinstance(self.state, Closed) or self.state.client.failure else self.state
        self.metrics.ready.set(service is not None)
        self.metrics.active.set(service.client.active if service else 0)
        self.metrics.arriving.set(self.entrance.held)
        return self.metrics.render()

    def retry_after(self, status: int) -> int:
        """Seconds after which a request that was refused for now may be sent again; 0 where that makes no sense."""
        if status == 503:
            return RETRY_SECONDS
        if status != 429:
            return 0
        if isinstance(self.state, Closed):
            return RETRY_SECONDS
        return self.metrics.pace.wait_for(self.state.waiting + self.entrance.preparing, self.state.info.max_rows)


async def off_loop(work: Callable[[], T]) -> T:
    """Runs what may take long (templates, tokenising) in a thread, so that other clients' streams go on."""
    return await asyncio.to_thread(work)
