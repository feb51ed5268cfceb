"""Laws of connections: none stays open for nothing, and none that is slow holds up another."""

from __future__ import annotations

import itertools
import json
import socket
import time

import httpx
import pytest

from overdrive import link
from overdrive.serve.connection import Connection
from overdrive.wire import Tokens

ASK = {"model": "tiny", "prompt": "hi"}


@pytest.fixture
def impatient(monkeypatch, server):
    """The server, with alarms that ring soon for connections made from now on."""
    monkeypatch.setattr(Connection, "head_seconds", 0.15)
    monkeypatch.setattr(Connection, "stuck_seconds", 0.15)
    return server


def connect(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect((host, int(port)))
    return connection


def request(body: dict) -> bytes:
    data = json.dumps(body).encode()
    return f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def ended(connection: socket.socket) -> bool:
    """Whether the server closes the connection, within the socket's timeout."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def wait(condition, seconds=10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


def endless(submit):
    """Answers without an end, a lot at a time."""
    return (Tokens(submit.id, [97] * 4096) for _ in itertools.count())


@pytest.mark.parametrize("head", [b"", b"POST / HTTP/1.1\r\nHost: localhost\r\n"], ids=["nothing", "half a head"])
def test_a_client_that_does_not_ask_is_let_go(impatient, head):
    with connect(impatient) as connection:
        connection.sendall(head)
        assert ended(connection)


def test_an_answer_may_take_longer_than_a_question(impatient, http):
    def slow(submit):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            yield Tokens(submit.id)
        yield Tokens(submit.id, [97], finish="length")

    impatient.engine.script = slow
    assert httpx.post(f"{impatient.url}/v1/completions", json=ASK).status_code == 200


def test_requests_sent_at_once_on_one_connection_are_answered_in_turn(impatient):
    with connect(impatient) as connection:
        connection.sendall(request(ASK) * 3)
        answers = b""
        while part := connection.recv(65536):  # until the alarm for the next head
            answers += part
    assert answers.count(b"HTTP/1.1 200") == 3 and answers.endswith(b"}")


def test_a_client_that_does_not_read_is_cut_off_and_others_are_served(impatient, http):
    impatient.engine.script = endless
    with connect(impatient) as connection:
        connection.sendall(request({**ASK, "stream": True}))
        wait(lambda: impatient.engine.submits)
        impatient.engine.script = type(impatient.engine)().script
        assert http.post("/v1/completions", json=ASK).status_code == 200
        wait(lambda: impatient.engine.aborts)
    wait(lambda: impatient.client.active == 0)


def test_what_a_slow_client_has_not_read_is_bounded(monkeypatch, server):
    """Long before the alarm for clients that read nothing at all."""
    monkeypatch.setattr(link, "MOST_UNREAD", 50)
    server.engine.script = endless
    with connect(server) as connection:
        connection.sendall(request({**ASK, "stream": True}))
        wait(lambda: server.engine.aborts)
        text = b""
        while b"[DONE]" not in text and (part := connection.recv(65536)):
            text += part
    assert b"the client reads its answer too slowly" in text
    assert server.client.active == 0
