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
from overdrive.serve.faults import ServerFault
from overdrive.serve.metrics import Metrics
from overdrive.text import ChatTemplate, Tokenizer
from overdrive.tools.style import ChatStyle
from overdrive.tools.turn import Asked, Turn, prepare
from overdrive.types import SamplingParams
from overdrive.wire import EngineInfo, Submit

T = TypeVar("T")


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

    def submit(self, answer_ids: list[str], prompts: list[list[int]], params: list[SamplingParams]) -> Reply:
        """Sends one engine request per answer. Raises BadRequest (429) when the queue has no room for all of them."""
        if self.client.failure or self.client.draining:
            raise ServerFault(self.client.failure or "the server is shutting down", status=503)
        capacity = self.info.max_rows + self.info.max_queue
        if len(answer_ids) > capacity:
            raise BadRequest(f"n: {len(answer_ids)} answers at once, the server takes {capacity} at most", "n")
        if self.client.active + len(answer_ids) > capacity:
            raise BadRequest("the queue is full, try again later", "", "queue_full", 429)
        now = time.time()
        triples = zip(answer_ids, prompts, params, strict=True)
        return self.client.submit([Submit(name, prompt, drawn, now) for name, prompt, drawn in triples])


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

    def service(self) -> Service:
        """The ready service. Raises ServerFault (503) while there is none."""
        if isinstance(self.state, Closed):
            raise ServerFault(self.state.reason, status=503)
        if self.state.client.failure:
            raise ServerFault(self.state.client.failure, status=503)
        return self.state


async def off_loop(work: Callable[[], T]) -> T:
    """Runs what may take long (templates, tokenising) in a thread, so that other clients' streams go on."""
    return await asyncio.to_thread(work)
