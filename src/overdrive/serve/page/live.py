"""What open pages are told, as server-sent events. Nothing runs, and nothing is kept, while no page is open.

    hello    what runs: the model, the drafter, the engine's limits
    map      what is chosen at every load; again when that changes
    pulse    what happened since the one before, about twice a second
    status   the engine loads, drains, starts again or is gone, and why; the stream ends with it, unless answers of a
             server that drains are still to end

Each page has its own differences, so one that reads slowly gets fewer and larger ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from overdrive import __version__
from overdrive.serve.page.atlas import Atlas
from overdrive.serve.page.pulse import pulse
from overdrive.serve.service import Closed, Gate, Service

SHORTEST_PULSE = 0.4  # seconds: what the engine tells sooner waits for the next, as rates over less mean little
SILENCE = 0.5  # seconds after which a page is shown that the connection lives, and the server's state is looked at
MAP_PULSES = 4  # pulses between two looks at whether the map has changed
FACTS = (
    *("architecture", "device", "precision", "threads", "overlap", "simulated_acceptance"),
    *("drafter", "draft_model", "drafts", "speculation", "plans", "sources"),
    *("max_rows", "max_queue", "max_model_len", "kv_tokens", "page_size"),
)
_encode = msgspec.json.Encoder().encode


async def follow(gate: Gate) -> AsyncIterator[bytes]:
    """Events for one page, until the server goes down or has nobody to tell of."""
    state = gate.state
    if isinstance(state, Service):
        yield event("hello", facts(state, gate.options.speculation_control))
        async for told in _watch(gate, state):
            yield told
    if isinstance(gate.state, Closed):
        yield event("status", {"status": gate.state.status, "reason": gate.state.reason})
    elif gate.state.client.failure:
        yield event("status", {"status": "failed", "reason": gate.state.client.failure})


async def _watch(gate: Gate, service: Service) -> AsyncIterator[bytes]:
    """Maps and pulses, while the engine lives and the server does not wait for this page to go."""
    client, atlas, pulses = service.client, Atlas(service.info), 0
    if client.failure:
        return
    then = client.stats
    yield event("pulse", pulse(then, then))
    yield (shown := event("map", await atlas.draw(then.planning)))
    while not client.failure:
        if gate.state is not service:
            if not (isinstance(gate.state, Closed) and client.active):
                return
            yield event("status", {"status": gate.state.status, "reason": gate.state.reason})
        try:
            now = await asyncio.wait_for(client.next_stats(), SILENCE)
        except TimeoutError:
            yield b": nothing new\n\n"
            continue
        if now.clock - then.clock < SHORTEST_PULSE:
            continue
        yield event("pulse", pulse(now, then))
        then, pulses = now, pulses + 1
        if pulses % MAP_PULSES == 0 and (drawn := event("map", await atlas.draw(now.planning))) != shown:
            yield (shown := drawn)


def event(name: str, value: Any) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(value) + b"\n\n"


def facts(service: Service, control: bool) -> dict[str, Any]:
    """What runs here. started: Unix time of this start; another one means another server. control: whether clients may
    change who decides how much is drafted."""
    info = service.info
    return {
        "version": __version__,
        "model": service.name,
        "started": service.created,
        "chats": service.template.known,
        "costs": info.costs.get("origin", ""),
        **{name: getattr(info, name) for name in FACTS},
        "control": control,
    }
