"""Laws of keeping an engine: what dies is followed by another, not for ever, and the gate says what is going on."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from types import SimpleNamespace

import pytest

from overdrive.config import ServerOptions
from overdrive.errors import OverdriveError
from overdrive.link import EngineEndpoint
from overdrive.serve.keeper import STEADY_SECONDS, EngineKeeper
from overdrive.serve.metrics import Metrics
from overdrive.serve.service import Closed, Gate, Service
from overdrive.text import ByteTokenizer, ChatTemplate
from overdrive.tools.style import chat_style
from overdrive.types import FinishReason, SamplingParams
from overdrive.wire import Failed, Loading, Ready, Tokens
from tests.patience import PATIENCE

from .fakes import INFO, TEMPLATE, FakeEngine, TalkingEngine
from .test_state import metric

SILENCE = 1.0
"""Seconds that are too long for an engine that serves: ten times what one that talks is silent."""


class ThreadProcess:
    """An engine in a thread that looks like a process: its sentinel is a pipe that its end closes."""

    exit_word = "signal SIGTEST"

    def __init__(self, address: str, serve) -> None:
        self.sentinel, self._alive = os.pipe()
        self._serve = serve
        self._thread = threading.Thread(target=self._run, args=(address, serve), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def end(self, grace: float) -> None:
        if isinstance(self._serve, Stuck):
            self._serve.killed.set()
        self._thread.join(PATIENCE)
        os.close(self.sentinel)

    def _run(self, address: str, serve) -> None:
        try:
            serve(address)
        finally:  # a process that breaks ends too
            os.close(self._alive)


def dies(address: str) -> None:
    """Serves, and ends at once."""
    say(address, Ready(INFO))


def cannot_start(address: str) -> None:
    say(address, Failed("not enough memory"))


class Stuck:
    """Serves, and says nothing any more, until it is killed."""

    def __init__(self) -> None:
        self.killed = threading.Event()

    def __call__(self, address: str) -> None:
        say(address, Ready(INFO))
        self.killed.wait(PATIENCE)


class StuckInEnd(Stuck):
    """Serves, says that it cannot go on, and does not end, until it is killed."""

    was_killed = False

    def __call__(self, address: str) -> None:
        say(address, Ready(INFO), Failed("the device is lost"))
        self.was_killed = self.killed.wait(PATIENCE)


class StuckInStart(Stuck):
    """Loads, and says nothing any more before it serves, until it is killed."""

    def __call__(self, address: str) -> None:
        say(address, Loading("weights", 7, 7), Loading("graphs", 3, 12))
        self.killed.wait(PATIENCE)


def starts_slowly(address: str) -> None:
    """Says nothing for longer than an engine that serves may."""
    time.sleep(1.5 * SILENCE)
    TalkingEngine().serve(address)


def starts_step_by_step(address: str) -> None:
    """Takes longer than an engine may be silent in a start, and is never silent for so long."""
    endpoint = EngineEndpoint(address)
    for number in range(12):
        endpoint.send(Loading("graphs", number, 12))
        time.sleep(0.1)
    endpoint.close()
    TalkingEngine().serve(address)


def talks(address: str) -> None:
    TalkingEngine().serve(address)


def say(address: str, *messages) -> None:
    endpoint = EngineEndpoint(address)
    for message in messages:
        endpoint.send(message)
    endpoint.close()


def serves(address: str) -> None:
    FakeEngine().serve(address)


class Kept:
    """A keeper whose engines behave one after the other as `lives` says, the last one for ever."""

    def __init__(
        self, folder, lives, restarts: int = 5, first_wait: float = 0.01, timeout: float = 0.0, start: float = 60.0
    ) -> None:
        self.lives, self.started, self.greeted = lives, 0, []
        self.gate = Gate(ServerOptions(engine_timeout=timeout), Metrics())
        self.keeper = EngineKeeper(self.start, self.open, self.gate, folder, restarts, first_wait, start)

    def start(self, address: str) -> ThreadProcess:
        self.started += 1
        return ThreadProcess(address, self.lives[min(self.started, len(self.lives)) - 1])

    async def open(self, client) -> Service:
        info, tokenizer = await client.ready(), ByteTokenizer()
        template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens, "test")
        return Service(client, info, tokenizer, template, chat_style(template, tokenizer), "tiny", 60.0)

    async def run(self) -> None:
        await self.keeper.run(self.greeted.append)

    async def until(self, condition) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)


def test_engines_that_keep_dying_end_the_server(tmp_path):
    kept = Kept(tmp_path, [dies], restarts=2)
    with pytest.raises(OverdriveError, match="SIGTEST"):
        asyncio.run(kept.run())
    assert (kept.started, len(kept.greeted)) == (3, 1)


def test_a_first_engine_that_cannot_start_ends_the_server_at_once(tmp_path):
    kept = Kept(tmp_path, [cannot_start, serves])
    with pytest.raises(OverdriveError, match="not enough memory"):
        asyncio.run(kept.run())
    assert kept.started == 1


def test_a_later_engine_that_cannot_start_is_followed_by_another(tmp_path):
    kept = Kept(tmp_path, [dies, cannot_start, serves])
    seen = []

    async def scenario() -> None:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: kept.started == 2 and isinstance(kept.gate.state, Closed))
        seen.append(kept.gate.state.status)
        await kept.until(lambda: kept.started == 3 and isinstance(kept.gate.state, Service))
        await kept.keeper.drain(1.0, asyncio.Event())
        seen.append(kept.gate.state.status)
        await keeping

    asyncio.run(scenario())
    assert seen == ["restarting", "draining"]


def test_a_stuck_engine_is_killed_and_followed_by_another(tmp_path):
    kept = Kept(tmp_path, [Stuck(), talks], timeout=SILENCE)

    async def scenario() -> list[Tokens]:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: isinstance(kept.gate.state, Service))
        reply = kept.gate.state.submit(["a"], [[1]], [SamplingParams(max_tokens=5)], 60.0)
        ends = [item async for item in reply]
        await kept.until(lambda: kept.started == 2 and isinstance(kept.gate.state, Service))
        await kept.keeper.drain(1.0, asyncio.Event())
        await keeping
        return ends

    (end,) = asyncio.run(scenario())
    assert (end.finish, end.error) == (FinishReason.ERROR, "the engine process gave no sign of life for 1 s")
    assert counted(kept) == (1, 1)


def test_an_engine_may_start_for_longer_than_it_may_be_silent(tmp_path):
    kept = Kept(tmp_path, [starts_slowly], timeout=SILENCE)

    async def scenario() -> None:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: isinstance(kept.gate.state, Service))
        await asyncio.sleep(1.5 * SILENCE)
        await kept.keeper.drain(1.0, asyncio.Event())
        await keeping

    asyncio.run(scenario())
    assert (kept.started, counted(kept)) == (1, (0, 0))


def test_an_engine_stuck_before_it_serves_is_killed_and_followed_by_another_even_the_first(tmp_path):
    kept = Kept(tmp_path, [StuckInStart(), StuckInStart(), talks], timeout=SILENCE, start=SILENCE)
    seen = []

    async def scenario() -> None:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: isinstance(kept.gate.state, Closed) and kept.gate.state.status == "restarting")
        seen.append(kept.gate.state.reason)
        await kept.until(lambda: isinstance(kept.gate.state, Service))
        await kept.keeper.drain(1.0, asyncio.Event())
        await keeping

    asyncio.run(scenario())
    silence = "the engine process gave no sign of life for 1 s while it started (graphs, 3 of 12)"
    assert seen == [f"{silence}; the engine is being started again"]
    assert (kept.started, len(kept.greeted), counted(kept)) == (3, 1, (2, 2))


def test_an_engine_that_says_that_it_ends_is_not_waited_for_for_ever(tmp_path):
    """Its device may be stuck: it has a few seconds."""
    stuck = StuckInEnd()
    kept = Kept(tmp_path, [stuck, talks])

    async def scenario() -> None:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: kept.started == 2 and isinstance(kept.gate.state, Service))
        await kept.keeper.drain(1.0, asyncio.Event())
        await keeping

    asyncio.run(scenario())
    assert stuck.was_killed and counted(kept) == (0, 1)


def test_engines_that_all_get_stuck_in_their_start_end_the_server(tmp_path):
    kept = Kept(tmp_path, [StuckInStart(), StuckInStart()], restarts=1, timeout=0.1, start=0.4)
    with pytest.raises(OverdriveError, match=r"no sign of life for 0\.4 s while it started"):
        asyncio.run(kept.run())
    assert (kept.started, kept.greeted) == (2, [])


def test_a_start_that_gets_on_may_take_as_long_as_it_likes(tmp_path):
    kept = Kept(tmp_path, [starts_step_by_step], timeout=SILENCE, start=SILENCE)

    async def scenario() -> None:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: isinstance(kept.gate.state, Service))
        await kept.keeper.drain(1.0, asyncio.Event())
        await keeping

    asyncio.run(scenario())
    assert (kept.started, counted(kept)) == (1, (0, 0))


def test_what_could_not_start_is_not_tried_again_where_the_first_was_stuck(tmp_path):
    kept = Kept(tmp_path, [StuckInStart(), cannot_start, talks], timeout=0.1, start=0.4)
    with pytest.raises(OverdriveError, match="not enough memory"):
        asyncio.run(kept.run())
    assert kept.started == 2


def test_the_time_of_loading_is_no_good_service(tmp_path, monkeypatch):
    """Else engines that load for long and die at once would be started for ever."""
    clock = SimpleNamespace(now=0.0)

    def loads_slowly_and_dies(address: str) -> None:
        clock.now += 2 * STEADY_SECONDS
        dies(address)

    monkeypatch.setattr("overdrive.serve.keeper.time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("overdrive.serve.keeper.LAST_WORDS_SECONDS", 0.01)
    kept = Kept(tmp_path, [loads_slowly_and_dies], restarts=2)
    with pytest.raises(OverdriveError, match="SIGTEST"):
        asyncio.run(asyncio.wait_for(kept.run(), PATIENCE))
    assert kept.started == 3


def counted(kept: Kept) -> tuple[float, float]:
    """Engines that were killed because they were stuck, and engines started in place of others."""
    text = kept.gate.report().decode()
    return tuple(metric(text, f"overdrive_engine_{name}_total") for name in ("hangs", "restarts"))


def test_a_system_without_a_process_to_give_is_asked_again(tmp_path):
    class NoProcess(ThreadProcess):
        def __enter__(self):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    kept = Kept(tmp_path, [dies], restarts=2)
    first, starts = kept.start, []

    def start(address: str) -> ThreadProcess:
        starts.append(address)
        return first(address) if len(starts) == 1 else NoProcess(address, dies)

    kept.keeper = EngineKeeper(start, kept.open, kept.gate, tmp_path, 2, 0.01)
    with pytest.raises(OverdriveError, match=r"cannot be started: resource temporarily unavailable$"):
        asyncio.run(kept.run())
    assert len(starts) == 3


def test_a_server_told_to_end_starts_no_engine_in_place_of_the_one_that_drained(tmp_path):
    kept = Kept(tmp_path, [serves])

    async def scenario() -> None:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: isinstance(kept.gate.state, Service))
        await kept.keeper.drain(1.0, asyncio.Event())
        await keeping

    asyncio.run(scenario())
    assert kept.started == 1


def test_a_drain_that_takes_too_long_ends_what_still_runs(tmp_path):
    kept = Kept(tmp_path, [lambda address: FakeEngine(script=silent).serve(address)])

    async def scenario() -> list[FinishReason | None]:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: isinstance(kept.gate.state, Service))
        reply = kept.gate.state.submit(["a"], [[1]], [SamplingParams(max_tokens=5)], 60.0)
        await kept.keeper.drain(0.05, asyncio.Event())
        await keeping
        return [item.finish async for item in reply]

    assert asyncio.run(scenario()) == [FinishReason.ABORT]


def test_a_second_signal_does_not_wait_for_the_drain(tmp_path):
    kept = Kept(tmp_path, [lambda address: FakeEngine(script=silent).serve(address)])

    async def scenario() -> None:
        keeping, hurry = asyncio.create_task(kept.run()), asyncio.Event()
        await kept.until(lambda: isinstance(kept.gate.state, Service))
        kept.gate.state.submit(["a"], [[1]], [SamplingParams(max_tokens=5)], 60.0)
        draining = asyncio.create_task(kept.keeper.drain(1e6, hurry))
        await kept.until(lambda: isinstance(kept.gate.state, Closed))
        hurry.set()
        await draining
        await keeping

    asyncio.run(scenario())


def silent(submit):
    """Never answers."""
    return iter(lambda: Tokens(submit.id), None)


def test_a_server_that_waits_to_start_its_engine_again_can_be_ended(tmp_path):
    kept = Kept(tmp_path, [dies], first_wait=1e6)

    async def scenario() -> None:
        keeping = asyncio.create_task(kept.run())
        await kept.until(lambda: isinstance(kept.gate.state, Closed) and kept.gate.state.status == "restarting")
        await kept.keeper.drain(1e6, asyncio.Event())
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(scenario())
    assert kept.started == 1
