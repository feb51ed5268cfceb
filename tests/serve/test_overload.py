"""Laws of too much at once: what cannot be served is refused early, with a time to come back."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import ExitStack

import httpx
import msgspec
import pytest

from overdrive.errors import BadRequest
from overdrive.serve.entrance import BODIES, Entrance, Hold
from overdrive.serve.metrics import Pace
from overdrive.wire import Tokens
from tests.patience import PATIENCE, wait_until, within

from .fakes import INFO, speak

ASK = {"model": "tiny", "prompt": "hi"}


def never(submit):
    """An engine that does not answer."""
    return iter(lambda: Tokens(submit.id), None)


def send(server, head: str, body: bytes = b"") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode() + body)
    return connection


def blocked(server) -> socket.socket:
    """A request that is under way for ever."""
    before, body = server.client.active, json.dumps(ASK).encode()
    connection = send(server, f"Content-Length: {len(body)}", body)
    wait_until(lambda: server.client.active > before)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_request_may_ask_for_less_time_than_the_server_gives(http, server, stream, path):
    server.engine.script = never
    what = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    response = http.post(path, json={"model": "tiny", **what, "stream": stream, "timeout_seconds": 0.1})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (504, "timeout")
    assert error["message"] == "the answer was not complete after 0.1 seconds, which is the request's timeout_seconds"
    assert server.client.active == 0
    wait_until(lambda: len(server.engine.aborts) == 1)
    assert 0 < server.engine.submits[0].deadline < 1


def test_a_stream_whose_time_is_over_ends_with_an_error(http, server):
    def script(submit):
        yield Tokens(submit.id, [97])
        yield from never(submit)

    def ends(seconds):
        response = http.post("/v1/completions", json={**ASK, "stream": True, "timeout_seconds": seconds})
        if response.status_code == 504:  # before the first token had come
            return False
        lines = response.text.split("\n\n")
        assert json.loads(lines[0][6:])["choices"][0]["text"] == "a"
        assert json.loads(lines[1][6:])["error"]["code"] == "timeout"
        return lines[2] == "data: [DONE]"

    server.engine.script = script
    assert within(0.1, ends)


@pytest.mark.parametrize("value", [0, -1, "5", True, float("1e999"), [1]])
def test_a_time_that_is_none_is_refused(http, value):
    response = http.post("/v1/completions", content=json.dumps({**ASK, "timeout_seconds": value}))
    assert (response.status_code, response.json()["error"]["param"]) in ((400, "timeout_seconds"), (400, None))


def test_asking_for_more_time_than_the_server_gives_changes_nothing(make_server):
    server = make_server(request_seconds=0.1)
    server.engine.script = never
    response = httpx.post(f"{server.url}/v1/completions", json={**ASK, "timeout_seconds": 100})
    assert response.status_code == 504
    assert "this server's limit" in response.json()["error"]["message"]


def test_a_full_queue_is_refused_before_the_body_has_come(make_server):
    server = make_server(info=msgspec.structs.replace(INFO, max_rows=1, max_queue=1))
    server.engine.script = never
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(blocked(server))
        told = httpx.get(f"{server.url}/ready").json()
        assert told == {"status": "busy", "reason": "the queue is full, try again later"}
        assert httpx.get(f"{server.url}/health").json() == {"status": "ready"}
        with send(server, "Content-Length: 1000000") as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 429")
    wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)


def test_the_time_to_come_back_grows_with_the_answers_and_the_queue():
    pace = Pace()
    assert (pace.wait_for(0, rows=4), pace.wait_for(20, rows=4)) == (1, 5)  # nothing is known yet
    for _ in range(10):
        pace.add(2.0)
    assert pace.wait_for(0, rows=4) == 1
    assert pace.wait_for(10, rows=4) == 5
    assert pace.wait_for(10, rows=10) == 2
    assert pace.wait_for(10_000, rows=4) == Pace.LONGEST


def test_a_full_queue_tells_that_time(make_server):
    server = make_server(info=msgspec.structs.replace(INFO, max_rows=1, max_queue=2))
    for _ in range(5):
        server.gate.metrics.pace.add(3.5)
    server.engine.script = never
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(blocked(server))
        assert httpx.post(f"{server.url}/v1/completions", json=ASK).headers["retry-after"] == "7"


def test_bodies_together_have_a_limit_and_give_back_what_they_took():
    entrance = Entrance(max_body_bytes=1 << 20)
    holds = [Hold(entrance) for _ in range(BODIES)]
    with pytest.raises(BadRequest) as refusal:
        for hold in holds:
            hold.add(1 << 20)
    assert refusal.value.status == 429
    for hold in holds:
        hold.release()
        hold.release()
    assert entrance.held == 0


def test_bodies_that_wait_do_not_keep_others_out_for_longer_than_they_last(http, server):
    room = server.gate.entrance
    with send(server, "Content-Length: 100", b"{"):
        wait_until(lambda: room.held > 0)
        assert http.post("/v1/completions", json=ASK).status_code == 200
    wait_until(lambda: room.held == 0)
    for body in (b"{", b"{}", json.dumps({**ASK, "n": 100}).encode()):
        assert http.post("/v1/completions", content=body).status_code == 400
    assert (room.held, room.preparing) == (0, 0)


def test_requests_being_prepared_have_their_place_in_the_queue(http, server, monkeypatch):
    """Else a flood would have every prompt tokenised before the first is refused."""
    ready = server.gate.state
    monkeypatch.setattr(server.gate.entrance, "preparing", ready.info.max_rows + ready.info.max_queue)
    assert http.post("/v1/completions", json=ASK).status_code == 429
    monkeypatch.setattr(server.gate.entrance, "preparing", ready.info.max_rows + ready.info.max_queue - 1)
    assert http.post("/v1/completions", json=ASK).status_code == 200


def test_a_flood_is_answered_to_the_last_client(make_server):
    """`benchmarks/flood.py` is the same with thousands, and a real engine."""
    server, refused = make_server(info=msgspec.structs.replace(INFO, max_rows=4, max_queue=4)), threading.Event()

    def busy(submit):
        """Whoever is served keeps its place until somebody has been refused, however slowly the clients come."""
        while not refused.is_set():
            yield Tokens(submit.id)
        yield from speak(submit)

    async def one(http: httpx.AsyncClient, number: int) -> int:
        response = await http.post("/v1/completions", json={**ASK, "stream": number % 2 == 0})
        if response.status_code == 429:
            refused.set()
        assert response.status_code == 429 or not response.text.startswith("data") or "[DONE]" in response.text
        return response.status_code

    async def flood() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as http:
            return await asyncio.gather(*(one(http, number) for number in range(60)))

    server.engine.script = busy
    statuses = asyncio.run(flood())
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 8
    wait_until(lambda: (server.client.active, server.gate.entrance.held, server.gate.entrance.preparing) == (0, 0, 0))
