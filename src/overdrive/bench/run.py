"""A run from its first trial request to its last line: blocks in turn, every answer written as it comes.

Knows the order of things; shapes of load, requests and figures have files of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import httpx

from overdrive.bench.arms import Arm
from overdrive.bench.client import Ask, Sample, alive, send
from overdrive.bench.lever import put_back, shift
from overdrive.bench.load import Send, closed
from overdrive.bench.plan import Block, Pace, blocks, time_left
from overdrive.bench.records import Writer
from overdrive.bench.target import Target, counters, meet
from overdrive.errors import OverdriveError

WARM_TOKENS = 8
WARM_USERS = 4  # at least where a load is no number of users: a trace may hold hundreds of prompts
STATS_SECONDS = 0.3  # an engine tells its counters a few times a second: the last change of a block must have arrived


class Lost(Exception):
    """The server is gone; the message says which one and what it said."""


class Progress(Protocol):
    """Where a run shows how far it is."""

    def block(self, block: Block, total: int) -> None:
        """This block begins."""

    def answer(self, sample: Sample) -> None:
        """An answer has come."""

    def say(self, line: str) -> None:
        """A line that stays."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be measured. asks: requests by load. shape: puts the requests of a load on a server.

    facts: what the `run` line says beside arms and servers. out: file for the results, None for a name with the date.
    outlook: what is said before it begins of how much it will be; "" where the clock says when it ends. Else loads are
    numbers of users, and how long the rest may take is said at the beginning of each.
    """

    arms: Sequence[Arm]
    asks: dict[float, Sequence[Ask]]
    shape: Callable[[float, Sequence[Ask], Send], Awaitable[None]]
    repeats: int
    model: str = ""
    timeout: float = 600.0
    api_key: str = field(default="", repr=False)
    facts: dict[str, Any] = field(default_factory=dict)
    out: Path | None = None
    outlook: str = ""


async def measure(job: Job, open_writer: Callable[[], Writer], progress: Progress) -> str:
    """Measures all blocks. Returns "" or, where the run ended early, why; what was measured by then is written.

    open_writer: called once the servers have passed their trial, so that a run that cannot begin leaves no file.
    """
    headers = {"Authorization": f"Bearer {job.api_key}"} if job.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(headers=headers, timeout=job.timeout, limits=limits, trust_env=False) as http,
        put_back(http, job.arms),
    ):
        asks = [ask for several in job.asks.values() for ask in several]
        target = await meet(http, job.arms, asks, job.model)
        writer = open_writer()
        _begin(job, target, writer, progress)
        why = "the run broke off"
        try:
            await Session(job, target, http, writer, progress).all_blocks()
            why = ""
        except Lost as lost:
            why = str(lost)
        except asyncio.CancelledError:
            why = "the run was interrupted"
        finally:
            writer.end(why)
        return why


def _begin(job: Job, target: Target, writer: Writer, progress: Progress) -> None:
    arms = [{**asdict(arm), "model": target.models[arm.url]} for arm in job.arms]
    loads = list(job.asks)
    writer.run({**job.facts, "arms": arms, "loads": loads, "repeats": job.repeats, "servers": target.about})
    if job.outlook:
        progress.say(job.outlook)
    for note in target.notes:
        writer.note(note)
        progress.say(f"note: {note}")


@dataclass(frozen=True, slots=True)
class Session:
    """A run against servers that have passed their trial."""

    job: Job
    target: Target
    http: httpx.AsyncClient
    writer: Writer
    progress: Progress

    async def all_blocks(self) -> None:
        """Every block in its turn; before the first one of a load the servers are warmed up for it."""
        job, warm = self.job, set[float]()
        todo = list(blocks(job.arms, list(job.asks), job.repeats))
        for place, block in enumerate(todo):
            if block.load not in warm:
                paces = await self._warm_up(job.asks[block.load], block.load)
                warm.add(block.load)
                if job.outlook and len(paces) == len(job.arms):
                    self.progress.say(time_left(todo[place:], job.asks, paces))
            self.progress.block(block, len(todo))
            await self._block(block)

    async def _block(self, block: Block) -> None:
        await self._shift(block.arm)
        before = await counters(self.http, block.arm.url)
        began = time.monotonic()

        async def ask_one(ask: Ask) -> None:
            sample = await self._send(block.arm, ask)
            self.writer.request(block, sample, began)
            self.progress.answer(sample)
            await self._check(block.arm, sample)

        await self.job.shape(block.load, self.job.asks[block.load], ask_one)
        seconds = time.monotonic() - began
        if before:
            await asyncio.sleep(STATS_SECONDS)
        after = await counters(self.http, block.arm.url)
        grown = {name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name)}
        self.writer.block(block, seconds, grown)

    async def _warm_up(self, asks: Sequence[Ask], load: float) -> dict[str, Pace]:
        """Sends each server all prompts once, so that every arm finds the same prefix cache, and each arm a few.

        Returns the paces of those arms that gave an answer.
        """
        least = 1 if self.job.outlook else WARM_USERS
        users, seen, paces = max(least, min(64, round(load))), set[str](), dict[str, Pace]()
        for arm in self.job.arms:
            await self._shift(arm)
            samples: list[Sample] = []
            short = [replace(ask, body={**ask.body, "max_tokens": WARM_TOKENS}) for ask in asks]

            async def ask_one(ask: Ask, arm: Arm = arm, samples: list[Sample] = samples) -> None:
                samples.append(await self._send(arm, ask))
                await self._check(arm, samples[-1])

            await closed(short[: users if arm.url in seen else len(short)], users, ask_one)
            seen.add(arm.url)
            if pace := Pace.of(samples, min(users, len(short))):
                paces[arm.name] = pace
        return paces

    async def _shift(self, arm: Arm) -> None:
        try:
            await shift(self.http, arm)
        except OverdriveError as error:
            raise Lost(str(error)) from None

    async def _send(self, arm: Arm, ask: Ask) -> Sample:
        return await send(self.http, arm.url, ask, self.target.models[arm.url], arm.body)

    async def _check(self, arm: Arm, sample: Sample) -> None:
        """A broken connection may be one request's bad luck. Raises Lost when nobody answers there any more."""
        if sample.error and sample.status == 0 and not await alive(self.http, arm.url):
            raise Lost(f"the server at {arm.url} stopped answering ({sample.error})")
