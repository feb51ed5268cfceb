"""Laws of the two processes: how they start, drain and end, and that neither outlives the other."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from overdrive.config import ServerOptions
from overdrive.serve.server import listen
from tests.llm.conftest import CONFIG
from tests.patience import PATIENCE, wait_until

from .fakes import HOLD, TEMPLATE, TEXT

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


class Running:
    """A server process with its address and the id of its engine process."""

    SCRIPT = Path(__file__).with_name("run_fake.py")

    def __init__(self, model: str, folder: Path, port: int = 0, engine_timeout: float = 600.0) -> None:
        self.model = model
        template = folder / "template.jinja"
        template.write_text(TEMPLATE)
        command = [sys.executable, *map(str, (self.SCRIPT, model, port, template, engine_timeout))]
        self.scratch = tempfile.TemporaryDirectory(prefix="od")  # short: the link's address has 107 bytes at most
        environment = {**os.environ, "TMPDIR": self.scratch.name}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)

    def wait_ready(self) -> Running:
        line = self.process.stdout.readline()
        self.url = re.search(r"http://\S+", line).group()
        self.engine = next(pid for pid in _children(self.process.pid) if "spawn_main" in _command(pid))
        return self

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Meanwhile no engine starts, and no answer has more than its beginning."""
        file = Path(self.scratch.name, HOLD)
        file.touch()
        yield
        file.unlink()

    def health(self) -> str:
        return httpx.get(f"{self.url}/health").json()["status"]

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _children(pid: int) -> Iterator[int]:
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if int(file.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(file.parent.name)


@pytest.fixture
def run(tmp_path):
    started = []

    def make(model, port=0, **options):
        started.append(Running(model, tmp_path, port, **options))
        return started[-1]

    yield make
    for server in started:
        server.process.kill()
        server.process.communicate()
        server.scratch.cleanup()


def _gone(pid: int) -> bool:
    """Whether the process has ended (a zombie that nobody reaps has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _collect(url: str, model: str, lines: list[str]) -> None:
    body = {**ASK, "model": model, "stream": True, "ignore_eos": model != "tiny"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE) as response:
        lines.extend(response.iter_lines())


def _streaming(server: Running, model: str = "tiny") -> tuple[threading.Thread, list[str]]:
    """A stream that has begun."""
    lines: list[str] = []
    thread = threading.Thread(target=_collect, args=(server.url, model, lines))
    thread.start()
    wait_until(lambda: lines)
    return thread, lines


def test_it_serves_and_sigterm_ends_both_processes(run):
    server = run("tiny").wait_ready()
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=ASK).json()
    assert answer["choices"][0]["message"]["content"] == TEXT
    server.process.send_signal(signal.SIGTERM)
    code, errors = server.end()
    first, *lines = errors.splitlines()
    assert (code, first) == (0, "weights")
    assert [" info request id=" in line for line in lines] == [True]
    wait_until(lambda: _gone(server.engine))


def test_running_answers_end_before_the_server_does(run):
    server = run("tiny").wait_ready()
    with server.hold():
        thread, lines = _streaming(server)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.health() == "draining")
        assert httpx.post(f"{server.url}/v1/chat/completions", json=ASK).status_code == 503
    thread.join()
    assert lines[-2] == "data: [DONE]"
    assert any('"finish_reason":"stop"' in line for line in lines)
    code, errors = server.end()
    assert code == 0 and "answers still running: 1; interrupt again to stop now" in errors


def test_a_second_signal_stops_at_once_and_says_so(run):
    server = run("tiny").wait_ready()
    with server.hold():
        thread, lines = _streaming(server)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: server.health() == "draining")
        server.process.send_signal(signal.SIGINT)
        thread.join(PATIENCE)  # a tenth of what draining may take
    assert any("the server stopped before" in line for line in lines)
    assert not any('"finish_reason":"stop"' in line for line in lines)
    assert server.end()[0] == 0


def test_a_body_that_never_comes_whole_does_not_hold_the_server_up(run):
    """The server goes down with 503 for it, and with no traceback."""
    server = run("tiny").wait_ready()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # it waits for the body
        connection.sendall(b"{")
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.end()
        assert code == 0
        assert "Traceback" not in errors
        assert connection.recv(1000).startswith(b"HTTP/1.1 503")


def test_a_dead_engine_is_an_error_and_503_until_the_next_one_serves(run):
    server = run("tiny").wait_ready()
    with server.hold():
        thread, lines = _streaming(server)
        os.kill(server.engine, signal.SIGKILL)
        thread.join()
        assert any("the engine process ended (signal SIGKILL)" in line for line in lines)
        assert lines[-2] == "data: [DONE]"
        assert server.health() in ("failed", "restarting")
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=ASK)
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    wait_until(lambda: server.health() == "ready")
    assert httpx.post(f"{server.url}/v1/chat/completions", json=ASK).status_code == 200
    assert "overdrive_engine_restarts_total 1.0" in httpx.get(f"{server.url}/metrics").text
    server.process.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stopped_engine_is_killed_and_followed_by_another(run, tmp_path, real):
    """It lives, and nothing ends by itself: whoever waits gets an error, and probes see that nobody is answered."""
    model = str(tmp_path) if real else "tiny"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    server = run(model, engine_timeout=5.0 if real else 2.0).wait_ready()
    with server.hold():
        thread, lines = _streaming(server, model)
        os.kill(server.engine, signal.SIGSTOP)
        thread.join()
        assert any("gave no sign of life for" in line for line in lines)
        assert lines[-2] == "data: [DONE]"
        told = httpx.get(f"{server.url}/ready")
        assert (told.status_code, "no sign of life" in told.json()["reason"]) == (503, True)
        wait_until(lambda: _gone(server.engine))
    wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    ask = {**ASK, "model": model, "max_tokens": 20}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=ask).status_code == 200
    counted = httpx.get(f"{server.url}/metrics").text
    assert "overdrive_engine_hangs_total 1.0" in counted and "overdrive_engine_restarts_total 1.0" in counted
    server.process.send_signal(signal.SIGTERM)
    code, errors = server.end()
    assert (code, " s; it is killed" in errors) == (0, True)


def test_a_stopped_engine_does_not_hold_up_the_end(run):
    server = run("tiny").wait_ready()
    os.kill(server.engine, signal.SIGSTOP)
    server.process.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0
    wait_until(lambda: _gone(server.engine))


@pytest.mark.parametrize("stuck", [False, True])
def test_a_killed_server_leaves_no_engine(run, stuck):
    server = run("tiny").wait_ready()
    if stuck:
        os.kill(server.engine, signal.SIGSTOP)
    server.process.kill()
    wait_until(lambda: _gone(server.engine))


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("broken", "overdrive: no such model: broken"),
        ("crashing", "overdrive: the engine process ended (exit code 3)"),
    ],
)
def test_a_failed_start_is_one_line_and_exit_code_1(run, model, line):
    code, errors = run(model).end()
    assert code == 1
    assert errors.splitlines()[-1] == line
    assert "Traceback" not in errors


def test_a_port_in_use_is_one_line_and_no_model_is_loaded(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = run("tiny", port).end()
    assert code == 1
    assert errors == f"overdrive: cannot listen on 127.0.0.1:{port}: address already in use\n"


def test_small_events_do_not_wait_for_acknowledgements():
    async def accepted() -> int:
        options: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            options.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen(ServerOptions(port=0))
        async with await asyncio.start_server(note, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await options

    assert asyncio.run(accepted()) == 1


def test_a_client_whose_machine_is_gone_is_noticed():
    """Connections inherit that from the listener, where the system can."""
    with listen(ServerOptions(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 120
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) < 120_000
