"""A small server that misbehaves on demand, and results made of numbers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from overdrive.bench.arms import Arm
from overdrive.bench.client import Sample
from overdrive.bench.plan import Block
from overdrive.bench.records import Writer


class OddServer:
    """Answers chat requests with `tokens` words (by default as many as asked for), one event each.

    usage: whether the stream tells it. models: what /v1/models lists, None for a server that knows no such thing.
    dies_after: answers until the server is gone. reject: refuses a body by returning what to say.
    """

    def __init__(
        self,
        tokens: int = 0,
        usage: bool = True,
        models: list[str] | None = None,
        dies_after: int = 1 << 30,
        reject: Callable[[dict[str, Any]], str] = lambda body: "",
    ) -> None:
        self.tokens, self.usage, self.reject, self.left = tokens, usage, reject, dies_after
        self.models = ["odd"] if models is None else models
        self.bodies: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.bodies.append(body)
        self.left -= 1
        if self.left < 0:
            self._server.socket.close()  # nobody can connect any more, and this request is never answered
            return
        if said := self.reject(body):
            _reply(handler, 400, json.dumps({"error": {"message": said}}))
            return
        count = self.tokens or body["max_tokens"]
        events: list[Any] = [{"choices": [{"delta": {"content": "word "}}], "usage": None}] * count
        if self.usage:
            events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}})
        _reply(handler, 200, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(server: OddServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/v1/models" and server.models
            data = {"data": [{"id": name} for name in server.models]}
            _reply(self, 200 if known else 404, json.dumps(data) if known else "<html>nothing here</html>")

        def do_POST(self) -> None:
            server.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _reply(handler: BaseHTTPRequestHandler, status: int, text: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text.encode())


def write_results(
    path: Path, speeds: dict[str, list[list[float]]], loads: list[float], end: str | None = "", busy: float = 0.0
) -> Path:
    """Results of arms with these tokens/s: a list of repeats for each load. end: None leaves the last line out."""
    arms = [{"name": name, "url": "http://x", "body": {}, "model": "m"} for name in speeds]
    repeats = max(len(cell) for cells in speeds.values() for cell in cells)
    writer, number = Writer(path), 0
    machine = {"processor": "abacus", "cores": 2, "load_average": busy}
    writer.run({"mode": "sweep", "date": "D", "machine": machine, "arms": arms, "loads": loads, "repeats": repeats})
    for index, load in enumerate(loads):
        for repeat in range(repeats):
            for name, cells in speeds.items():
                if repeat < len(cells[index]):
                    block = Block(number, Arm(name, "http://x"), load, repeat)
                    write_block(writer, block, cells[index][repeat])
                    number += 1
    if end is not None:
        writer.end(end)
    return path


def write_block(writer: Writer, block: Block, speed: float, whole: bool = True) -> None:
    """Answers of 101 tokens for as many users as the load says, all at `speed` tokens/s together."""
    users = int(block.load)
    seconds = 101 * users / speed
    for turn in range(4):
        for _ in range(users):
            start = 10.001 + turn * seconds
            sample = Sample("plain", 101, start, start + 1e-4, start + seconds, 5, 101, 0, 60, 40, 41, status=200)
            writer.request(block, sample, 10.0)
    if whole:
        writer.block(block, 4 * seconds, {'overdrive_plans_total{drafts="0"}': 30.0})
