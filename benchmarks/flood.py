"""A flood: so many connections at once, each with one request. Every one must end with 200 or 429, and none may hang.

Run: PYTHONPATH=src python benchmarks/flood.py [--connections 2000] [--halves 500] [--url URL | --model smollm2]

Without --url it starts `overdrive serve MODEL` on a free port of loopback and ends it again, with SIGTERM. All
connections are opened first, as fast as the server accepts them; then all requests are sent. An answer is the whole
response, streams up to their [DONE]. Beside 200 and 429 it tells of the Retry-After that was given, and of everything
else as a fault. --halves are further connections, opened before, that send half a request's head and no more: they must
cost the others nothing, and be closed by the server. The exit code is 1 for a fault, a connection that is still open
after --seconds, a half request that is not closed, a /health that is not 200 during the flood and after it, and a
server that does not end with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

HALF_SECONDS = 40.0  # the server closes such a connection after 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a connection got: a status, or a word for why there is none; seconds from the first request's sending."""

    status: str
    seconds: float
    retry_after: int = 0


def main() -> None:
    """Floods, reports, and exits 1 for anything that a client could not live with."""
    arguments = _arguments()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with _server(arguments) as url:
        answers, healthy = asyncio.run(flood(url, arguments))
    report(answers, healthy)
    wrong = [answer for answer in answers if answer.status not in ("200", "429")]
    sys.exit(1 if wrong or not all(healthy) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="a server that runs already, on this machine")
    parser.add_argument("--model", default="smollm2", help="what to serve without --url")
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--halves", type=int, default=500)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=240.0, help="after which an open connection counts as hung")
    parser.add_argument("serve", nargs="*", help="further options of overdrive serve, behind --")
    arguments = parser.parse_args()
    host = urlsplit(arguments.url).hostname
    if host not in (None, "127.0.0.1", "localhost", "::1"):
        parser.error("a flood is for a server on this machine")
    return arguments


@contextlib.contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[str]:
    """The address of the server that runs, or of one for the time being."""
    if arguments.url:
        yield arguments.url
        return
    command = [sys.executable, "-m", "overdrive.cli", "serve", arguments.model, "--port", "0"]
    command += ["--log-level", "warning", *arguments.serve]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        yield found.group()
        process.send_signal(signal.SIGTERM)
        if code := process.wait(60):
            raise SystemExit(f"the server ended with exit code {code}")
    finally:
        process.kill()
        process.wait()


async def flood(url: str, arguments: argparse.Namespace) -> tuple[list[Answer], list[bool]]:
    """Answers of all connections, and what /health said during the flood and after it."""
    where = urlsplit(url)
    model = json.load(urllib.request.urlopen(f"{url}/v1/models"))["data"][0]["id"]
    connected = asyncio.Semaphore(200)  # at once; the others wait for a moment, or the system drops them
    gate = asyncio.Event()
    begin = [0.0]
    ready = 0

    async def one(number: int) -> Answer:
        nonlocal ready
        async with connected:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
        ready += 1
        try:
            await gate.wait()
            writer.write(_request(model, number, arguments.max_tokens))
            text = await reader.read(-1)
            return _answer(text, time.monotonic() - begin[0])
        finally:
            writer.close()

    halves = [asyncio.create_task(_half(where.hostname, where.port)) for _ in range(arguments.halves)]
    tasks = [asyncio.create_task(one(number)) for number in range(arguments.connections)]
    while ready < arguments.connections and not any(task.done() for task in tasks):
        await asyncio.sleep(0.01)
    begin[0] = time.monotonic()
    gate.set()
    await asyncio.wait(tasks, timeout=0.5)
    healthy = [await asyncio.to_thread(_healthy, url)]
    await asyncio.wait(tasks, timeout=arguments.seconds)
    answers = [_outcome(task, arguments.seconds) for task in tasks]
    if halves:
        done, left = await asyncio.wait(halves, timeout=HALF_SECONDS)
        print(f"half a head: {len(done)} were closed, {len(left)} are still open")
        healthy.append(not left)
    for task in (*tasks, *halves):
        task.cancel()
    healthy.append(await asyncio.to_thread(_healthy, url))
    return answers, healthy


async def _half(host: str | None, port: int | None) -> None:
    """Sends half a head and waits until the server has had enough."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConte")
    with contextlib.suppress(OSError):
        await reader.read(-1)
    writer.close()


def _request(model: str, number: int, max_tokens: int) -> bytes:
    """Every second one is a stream."""
    ask = {"model": model, "prompt": f"Story {number}:", "max_tokens": max_tokens, "stream": number % 2 == 0}
    body = json.dumps(ask).encode()
    head = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}")
    return "\r\n".join((*head, "", "")).encode() + body


def _answer(text: bytes, seconds: float) -> Answer:
    head, _, body = text.partition(b"\r\n\r\n")
    status = head[9:12].decode()
    if status == "200" and b"text/event-stream" in head and b"data: [DONE]" not in body:
        status = "cut off"
    retry = re.search(rb"(?i)retry-after: (\d+)", head)
    return Answer(status or "no answer", seconds, int(retry[1]) if retry else 0)


def _outcome(task: asyncio.Task[Answer], seconds: float) -> Answer:
    if not task.done():
        return Answer("hung", seconds)
    error = task.exception()
    return Answer(type(error).__name__, seconds) if error else task.result()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as response:
            return response.status == 200
    except OSError:
        return False


def report(answers: list[Answer], healthy: list[bool]) -> None:
    """One line for each kind of answer."""
    for status, count in Counter(answer.status for answer in answers).most_common():
        times = sorted(answer.seconds for answer in answers if answer.status == status)
        retries = [answer.retry_after for answer in answers if answer.status == status and answer.retry_after]
        said = f", Retry-After {min(retries)} to {max(retries)} s" if retries else ""
        print(f"{status}: {count}, median {statistics.median(times):.2f} s, slowest {times[-1]:.2f} s{said}")
    print(f"/health during and after: {'200' if all(healthy) else 'NOT ALWAYS 200, or half requests stayed'}")


if __name__ == "__main__":
    main()
