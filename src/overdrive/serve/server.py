"""`overdrive serve`: takes the port, starts the engine process, opens the gate, and closes it again in good order.

port taken -> engine loads (503) -> ready -> SIGTERM: drain (503, running answers end) -> engine ends -> exit
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from overdrive.bars import LoadingBars
from overdrive.config import EngineOptions, ServerOptions
from overdrive.errors import OverdriveError
from overdrive.link import EngineClient
from overdrive.serve.app import create_app
from overdrive.serve.metrics import Metrics
from overdrive.serve.process import EngineProcess, Target, run_engine
from overdrive.serve.service import Closed, Gate, Service
from overdrive.serve.terminal import ready_lines
from overdrive.text import open_text
from overdrive.tools.style import chat_style

LAST_WORDS_SECONDS = 0.5  # from the engine's death to calling it dead: what it sent before may still be on the link
END_SECONDS = 3.0  # for the engine process to end by itself
POLL_SECONDS = 0.05
BACKLOG = 2048  # connections that may wait to be accepted


def serve(model: str, engine: EngineOptions, options: ServerOptions, target: Target = run_engine) -> None:
    """Serves `model` until told to stop. Raises OverdriveError with one line when it cannot start."""
    with listen(options) as listener:
        asyncio.run(Server(model, engine, options, listener).run(target))


def listen(options: ServerOptions) -> socket.socket:
    """Takes the port, before the model is loaded. Raises OverdriveError when it is not to be had.

    The protocol is named because asyncio sets TCP_NODELAY only where it is; without that, events of a stream wait for
    the client's delayed acknowledgements, 40 ms each.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        number = error.errno or 0  # names that do not resolve have negative ones
        reason = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
        raise OverdriveError(f"cannot listen on {options.host}:{options.port}: {reason}") from error
    return listener


class Server:
    """One run of the HTTP process."""

    def __init__(self, model: str, engine: EngineOptions, options: ServerOptions, listener: socket.socket) -> None:
        self._model = model
        self._engine = engine
        self._options = options
        self._listener = listener
        self._gate = Gate(options, Metrics())
        config = uvicorn.Config(
            create_app(self._gate), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5
        )
        self._http = _Http(config)
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, target: Target) -> None:
        """Starts, serves, drains and ends. Raises OverdriveError when the engine cannot start or has died meanwhile."""
        with tempfile.TemporaryDirectory(prefix="overdrive-") as folder:
            address = f"ipc://{folder}/engine"
            client = EngineClient(address)
            try:
                with EngineProcess(target, self._model, self._engine, address) as process:
                    await self._run(client, process)
            finally:
                client.close()

    async def _run(self, client: EngineClient, process: EngineProcess) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, self._engine_ended, client, process)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        bars = LoadingBars()
        reader = asyncio.create_task(
            client.run(lambda loading: bars.update(loading.label, loading.done, loading.total))
        )
        reader.add_done_callback(lambda task: self._link_ended(client, task))
        http = asyncio.create_task(self._http.serve([self._listener]))
        try:
            with bars:
                await _first(self._open(client), self._stopping.wait())
            if isinstance(self._gate.state, Service):
                self._greet(self._gate.state)
            await self._stopping.wait()
            if client.failure:
                raise OverdriveError(client.failure)
            await self._drain(client)
        finally:
            self._http.should_exit = True
            await http
            client.stop()
            await asyncio.to_thread(process.end, END_SECONDS)
            reader.cancel()

    async def _open(self, client: EngineClient) -> None:
        """Waits for the engine and lets requests in."""
        info = await client.ready()
        tokenizer, template = await asyncio.to_thread(open_text, Path(info.source), self._engine.model)
        self._gate.metrics.watch(lambda: client.stats)
        name = self._options.served_model_name or self._model
        style = chat_style(template, tokenizer, self._engine.model.tool_format)
        self._gate.state = Service(client, info, tokenizer, template, style, name, self._options.request_seconds)

    def _greet(self, service: Service) -> None:
        host, port = self._listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        asks_key, chats = bool(self._options.api_key), service.template.known
        print(ready_lines(url, service.name, service.info, asks_key, chats), flush=True)

    def _signalled(self) -> None:
        """The first signal drains, the second stops at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def _link_ended(self, client: EngineClient, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._bury(client, f"the link to the engine broke: {task.exception()}")

    def _engine_ended(self, client: EngineClient, process: EngineProcess) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(process.sentinel)
        loop.call_later(LAST_WORDS_SECONDS, self._bury, client, f"the engine process ended ({process.exit_word})")

    def _bury(self, client: EngineClient, reason: str) -> None:
        if isinstance(self._gate.state, Service):
            print(f"overdrive: {reason}; every request is answered with 503 from now on", file=sys.stderr)
        client.fail(reason)

    async def _drain(self, client: EngineClient) -> None:
        """Lets running answers end, up to a deadline or a second signal; then they end with an error."""
        self._gate.state = Closed("draining", "the server is shutting down")
        client.drain()
        if client.active:
            print(f"Finishing {client.active} answers; interrupt again to stop now.", file=sys.stderr)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_first(_idle(client), self._hurry.wait()), self._options.drain_seconds)
        if client.active:
            client.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_idle(client), END_SECONDS)


class _Http(uvicorn.Server):
    """uvicorn without its signal handlers: `Server` drains before it lets go."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
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
