"""`overdrive serve`: takes the port, keeps an engine running, and ends in good order.

port taken -> engine kept (`keeper.py`) -> SIGTERM: drain (503, running answers end) -> engine ends -> exit
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from overdrive.config import EngineOptions, ServerOptions
from overdrive.errors import OverdriveError, system_reason
from overdrive.heap import freeze_heap
from overdrive.link import EngineClient
from overdrive.serve.allocator import keep_whole
from overdrive.serve.app import create_app
from overdrive.serve.connection import Connection, probe_silent_peers, raise_file_limit
from overdrive.serve.guards import Ended
from overdrive.serve.keeper import EngineKeeper, first_of
from overdrive.serve.keys import all_keys, warning
from overdrive.serve.logs import log_request, logs
from overdrive.serve.metrics import Metrics
from overdrive.serve.process import EngineProcess, Target, run_engine
from overdrive.serve.service import Gate, Service
from overdrive.serve.terminal import ready_lines
from overdrive.text import open_text
from overdrive.tools.style import chat_style

log = logging.getLogger("overdrive.serve")
BACKLOG = 2048  # connections that may wait to be accepted


def serve(model: str, engine: EngineOptions, options: ServerOptions, target: Target = run_engine) -> None:
    """Serves `model` until told to stop. Raises OverdriveError with one line when it cannot start."""
    options = replace(options, api_key=all_keys(options))
    raise_file_limit()
    keep_whole()
    with listen(options) as listener, logs(options.log_format, options.log_level):
        if worry := warning(options):
            log.warning(worry)
        with traced(options.otlp_endpoint) as watchers:
            asyncio.run(Server(model, engine, options, listener, watchers).run(target))


@contextlib.contextmanager
def traced(endpoint: str) -> Iterator[tuple[Ended, ...]]:
    """Who is told of requests that have ended: the log, and a collector of traces where there is one."""
    if not endpoint:
        yield (log_request,)
        return
    with contextlib.ExitStack() as stack:
        try:
            from overdrive.serve.traces import exported

            spans = stack.enter_context(exported(endpoint))
        except ImportError as error:
            raise OverdriveError("--otlp-endpoint needs the extra: pip install 'overdrive-llm[otel]'") from error
        yield (log_request, spans)


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
        probe_silent_peers(listener)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OverdriveError(f"cannot listen on {options.host}:{options.port}: {system_reason(error)}") from error
    return listener


def http_config(app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves `app`: without websockets, logs of its own and a name."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=5,
    )


class Server:
    """One run of the HTTP process."""

    def __init__(
        self,
        model: str,
        engine: EngineOptions,
        options: ServerOptions,
        listener: socket.socket,
        watchers: Sequence[Ended],
    ) -> None:
        self._model = model
        self._engine = engine
        self._options = options
        self._listener = listener
        self._gate = Gate(options, Metrics())
        self._http = _Http(http_config(create_app(self._gate, watchers)))
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reports: set[asyncio.Task[None]] = set()  # one for each living engine; asyncio keeps no hold of tasks

    async def run(self, target: Target) -> None:
        """Starts, serves, drains and ends. Raises OverdriveError when no engine can be kept running."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        http = asyncio.create_task(self._http.serve([self._listener]))
        try:
            with tempfile.TemporaryDirectory(prefix="overdrive-") as folder:
                await self._keep(target, Path(folder))
        finally:
            self._http.should_exit = True
            await http

    async def _keep(self, target: Target, folder: Path) -> None:
        """Keeps an engine running until told to stop, and drains the last one."""

        def start(address: str) -> EngineProcess:
            return EngineProcess(target, self._model, self._engine, address)

        keeper = EngineKeeper(start, self._open, self._gate, folder, self._options.max_restarts)
        keeping = asyncio.create_task(keeper.run(self._greet))
        try:
            await first_of(asyncio.shield(keeping), self._stopping.wait())
            await keeper.drain(self._options.drain_seconds, self._hurry)
        finally:
            self._http.should_exit = True
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _open(self, client: EngineClient) -> Service:
        """Waits for the engine and reads its model's text room."""
        info = await client.ready()
        tokenizer, template = await asyncio.to_thread(open_text, Path(info.source), self._engine.model)
        self._gate.metrics.watch(lambda: client.stats)
        reports = asyncio.create_task(report_faults(client))
        self._reports.add(reports)
        reports.add_done_callback(self._reports.discard)
        name = self._options.served_model_name or self._model
        style = chat_style(template, tokenizer, self._engine.model.tool_format)
        freeze_heap()
        return Service(client, info, tokenizer, template, style, name, self._options.request_seconds)

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


async def report_faults(client: EngineClient) -> None:
    """Logs why steps were lost, while the engine lives: it goes on after that, and clients see nothing but delay."""
    known = 0
    while not client.failure:
        stats = await client.next_stats()
        if stats.faults > known:
            known = stats.faults
            log.warning("the device lost steps", extra={"fields": {"reason": stats.fault, "faults": known}})


class _Http(uvicorn.Server):
    """uvicorn without its signal handlers: `Server` drains before it lets go."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
