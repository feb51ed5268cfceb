"""Keeps an engine behind the gate: starts its process, lets requests in when it is ready, starts another when it dies.

    starts -> loads (503) -> serves -> dies: its requests end with an error -> waits (503) -> starts again
           -> is stuck             -> is stuck: it is killed, and has died                 -> too often: the server ends

Each engine has a link of its own, so nothing of a dead one reaches those who ask the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from overdrive.errors import OverdriveError, system_reason
from overdrive.link import EngineClient
from overdrive.serve.process import EngineProcess
from overdrive.serve.service import Closed, Gate, Service
from overdrive.serve.terminal import loading
from overdrive.serve.watchdog import LOOK_SECONDS, Silence
from overdrive.wire import Loading

log = logging.getLogger("overdrive.serve")

LAST_WORDS_SECONDS = 0.5  # from the engine's death to calling it dead: what it sent before may still be on the link
END_SECONDS = 3.0  # for the engine process to end by itself
POLL_SECONDS = 0.05
START_SECONDS = 1800.0  # without progress in a start: longer than the longest of its parts takes where all is well
STEADY_SECONDS = 60.0  # an engine that served for so long had a good start: its death is the first one again
FIRST_WAIT = 1.0  # before an engine is started again; doubled from one death to the next, up to the longest
LONGEST_WAIT = 60.0

Start = Callable[[str], EngineProcess]
"""An engine process for the link at this address, not yet started."""
Open = Callable[[EngineClient], Awaitable[Service]]
"""Waits for the engine at the other end. Raises OverdriveError when it cannot start."""


class EngineLife:
    """One engine process and its link, from start to death; use it as an async context manager, which ends both."""

    def __init__(self, process: EngineProcess, address: str, on_loading: Callable[[str, int, int], None]) -> None:
        """process: not yet started. on_loading: told of its progress, as in `Loading`."""
        self.client = EngineClient(address)
        self._process = process
        self._on_loading = on_loading
        self._dead = asyncio.Event()
        self._phase = " while it started"
        self.stuck = False

    async def __aenter__(self) -> EngineLife:
        self._process.__enter__()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._ended)
        self._reader = asyncio.create_task(self.client.run(self._moved_on))
        self._reader.add_done_callback(self._link_ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self.client.stop()
        await asyncio.to_thread(self._process.end, 0.0 if self._dead.is_set() else END_SECONDS)
        self._reader.cancel()
        self.client.fail("the engine was stopped")
        self.client.close()

    async def opened(self, opening: Awaitable[Service], patience: float) -> Service:
        """What `opening` comes to, which waits for the engine. Raises OverdriveError when that cannot start.

        patience: as in `death`; whatever the engine says of its progress is a sign of life.
        """
        watching = asyncio.create_task(self.death(patience))
        try:
            service = await opening
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._phase = ""
        return service

    async def death(self, patience: float) -> str:
        """Waits for the engine's process to end, or for its word that it will; says why.

        patience: seconds without a sign of life after which it counts as dead, and `stuck` is true; 0 is without end.
        """
        between = min(LOOK_SECONDS, patience / 4 or LOOK_SECONDS)
        silence = Silence(patience, between)
        while not (self._dead.is_set() or self.client.failure):  # who has said so may be stuck in its own end
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dead.wait(), between)
            if silence.too_long(self.client.heard, time.monotonic()) and not self.client.failure:
                self.stuck = True
                self._bury(f"the engine process gave no sign of life for {patience:g} s{self._phase}")
        return self.client.failure

    def _moved_on(self, told: Loading) -> None:
        self._phase = f" while it started ({told.label}, {told.done} of {told.total or 'unknown'})"
        self._on_loading(told.label, told.done, told.total)

    def _link_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._bury(f"the link to the engine broke: {task.exception()}")

    def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._process.sentinel)
        loop.call_later(LAST_WORDS_SECONDS, self._bury, f"the engine process ended ({self._process.exit_word})")

    def _bury(self, reason: str) -> None:
        self.client.fail(reason)
        self._dead.set()


class EngineKeeper:
    """One engine after another behind `gate`; `run` and `drain` are called once.

    restarts: how often in a row an engine that died early is followed by another. first_wait: seconds before the first.
    start_seconds: without progress after which an engine that starts is stuck, where one that serves may not be silent
    for longer.
    """

    def __init__(
        self,
        start: Start,
        open_service: Open,
        gate: Gate,
        folder: Path,
        restarts: int,
        first_wait: float = FIRST_WAIT,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._start = start
        self._open = open_service
        self._gate = gate
        self._folder = folder
        self._restarts = restarts
        self._first_wait = first_wait
        self._start_seconds = start_seconds
        self._has_served = False
        self._life: EngineLife | None = None
        self._draining = False

    async def run(self, on_ready: Callable[[Service], None]) -> None:
        """Serves until drained. Raises OverdriveError when no engine can start at all, or too many have died.

        on_ready: told when the first one serves.
        """
        deaths, number = 0, 0
        while not self._draining:
            try:
                reason, served = await self._live(number, on_ready)
            except OSError as error:  # the system has no process to give
                reason, served = f"the engine process cannot be started: {system_reason(error)}", 0.0
                if not self._has_served:
                    raise OverdriveError(reason) from error
            if self._draining:
                return
            deaths = 1 if served > STEADY_SECONDS else deaths + 1
            if deaths > self._restarts:
                raise OverdriveError(reason)
            number += 1
            await self._wait(reason, deaths)

    async def _live(self, number: int, on_ready: Callable[[Service], None]) -> tuple[str, float]:
        """One engine's life: why it ended, and for how many seconds it served.

        Raises OverdriveError when it says that it cannot start, and none has before: the next could not either.
        """
        address = f"ipc://{self._folder}/engine{number}"
        bars = loading(self._gate.options.log_format)
        limit = self._gate.options.engine_timeout
        async with EngineLife(self._start(address), address, bars.update) as life:
            self._life = life
            try:
                with bars:
                    service = await life.opened(self._open(life.client), limit and max(limit, self._start_seconds))
            except OverdriveError as error:
                if not (self._has_served or life.stuck):
                    raise
                self._note_end(life, str(error))
                return str(error), 0.0
            if self._draining:
                return "", 0.0
            self._let_in(service, on_ready)
            began = time.monotonic()
            reason = await life.death(limit)
            self._note_end(life, reason)
            return reason, time.monotonic() - began - (limit if life.stuck else 0.0)

    def _let_in(self, service: Service, on_ready: Callable[[Service], None]) -> None:
        self._gate.state = service
        if self._has_served:
            log.warning("the engine serves again")
        else:
            on_ready(service)
        self._has_served = True

    def _note_end(self, life: EngineLife, reason: str) -> None:
        if life.stuck:
            self._gate.metrics.hangs.inc()
            log.error("%s; it is killed", reason)

    async def _wait(self, reason: str, deaths: int) -> None:
        """Closes the gate for a while, longer each time: what killed an engine may still be there."""
        seconds = min(self._first_wait * 2 ** (deaths - 1), LONGEST_WAIT)
        self._gate.metrics.restarts.inc()
        self._gate.state = Closed("restarting", f"{reason}; the engine is being started again")
        log.error("%s; starting it again in %g s (%d of %d)", reason, seconds, deaths, self._restarts)
        await asyncio.sleep(seconds)

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Lets running answers end, for `seconds` or until `hurry`; then they end with an error."""
        self._draining = True
        self._gate.state = Closed("draining", "the server is shutting down")
        if self._life is None:
            return
        client = self._life.client
        client.drain()
        if client.active:
            log.warning("answers still running: %d; interrupt again to stop now", client.active)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(first_of(_idle(client), hurry.wait()), seconds)
        if client.active:
            client.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_idle(client), END_SECONDS)


async def first_of(*works: Awaitable[object]) -> None:
    """Waits for the first of `works` to end, and raises what it raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


async def _idle(client: EngineClient) -> None:
    while client.active:
        await asyncio.sleep(POLL_SECONDS)
