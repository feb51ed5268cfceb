"""The shapes of load: so many users at once, a ramp of users, arrivals at given times. Knows clocks and tasks only.

`send` sends one request and returns when its answer is whole. What it raises ends the load and is raised again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

from overdrive.bench.client import Ask

Send = Callable[[Ask], Awaitable[None]]


async def closed(asks: Sequence[Ask], users: int, send: Send) -> None:
    """All of `asks`, `users` at once: whoever has an answer takes the next request."""
    queue = iter(asks)

    async def user() -> None:
        for ask in queue:
            await send(ask)

    await _together(user() for _ in range(users))


async def ramp(asks: Sequence[Ask], levels: Sequence[int], seconds: float, send: Send) -> None:
    """levels: users at once in each stage, rising, then falling; a stage lasts `seconds`.

    A user asks again until the last stage that has room for him is over, and then finishes his answer.
    """
    queue, begin = itertools.cycle(asks), time.monotonic()

    async def user(number: int) -> None:
        mine = [stage for stage, level in enumerate(levels) if level > number]
        await asyncio.sleep(mine[0] * seconds)
        while time.monotonic() < begin + (mine[-1] + 1) * seconds:
            await send(next(queue))

    await _together(user(number) for number in range(max(levels)))


async def replay(asks: Sequence[Ask], times: Sequence[float], send: Send) -> None:
    """Each request at its time (seconds from now), however many are still unanswered."""

    async def arrive(ask: Ask, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await send(ask)

    await _together(arrive(ask, seconds) for ask, seconds in zip(asks, times, strict=True))


async def _together(work: Iterable[Coroutine[None, None, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
