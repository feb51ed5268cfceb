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
from tests.patience import PATIENCE, wait_until, within

ASK = {"model": "tiny", "prompt": "hi"}


@pytest.fixture
def impatient(monkeypatch, server):
    """The server, with an alarm that rings soon for heads of requests, on connections made from now on."""
    monkeypatch.setattr(Connection, "head_seconds", 0.15)
    return server


def connect(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
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


def endless(submit):
    """Answers without an end, a lot at a time."""
    return (Tokens(submit.id, [97] * 4096) for _ in itertools.count())


@pytest.mark.parametrize("head", [b"", b"POST / HTTP/1.1\r\nHost: localhost\r\n"], ids=["nothing", "half a head"])
def test_a_client_that_does_not_ask_is_let_go(impatient, head):
    with connect(impatient) as connection:
        connection.sendall(head)
        assert ended(connection)


def test_an_answer_may_take_longer_than_a_question(monkeypatch, server):
    def answers(head_seconds):
        def slow(submit):
            end = time.monotonic() + 3 * head_seconds
            while time.monotonic() < end:
                yield Tokens(submit.id)
            yield Tokens(submit.id, [97], finish="length")

        monkeypatch.setattr(Connection, "head_seconds", head_seconds)
        server.engine.script = slow
        try:
            return httpx.post(f"{server.url}/v1/completions", json=ASK, timeout=PATIENCE).status_code == 200
        except httpx.TransportError:  # the connection was closed
            return False

    assert within(0.15, answers)


def test_requests_sent_at_once_on_one_connection_are_answered_in_turn(monkeypatch, server):
    def answers(head_seconds):
        monkeypatch.setattr(Connection, "head_seconds", head_seconds)
        with connect(server) as connection:
            connection.sendall(request(ASK) * 3)
            text = b""
            while part := connection.recv(65536):  # until the alarm for the next head
                text += part
        return text.count(b"HTTP/1.1 200") == 3 and text.endswith(b"}")

    assert within(0.15, answers)


def test_a_client_that_does_not_read_is_cut_off_and_others_are_served(monkeypatch, server, http):
    monkeypatch.setattr(Connection, "stuck_seconds", 0.15)
    server.engine.script = endless
    with connect(server) as connection:
        connection.sendall(request({**ASK, "stream": True}))
        wait_until(lambda: server.engine.submits)
        server.engine.script = type(server.engine)().script
        assert http.post("/v1/completions", json=ASK).status_code == 200
        wait_until(lambda: server.engine.aborts)
    wait_until(lambda: server.client.active == 0)


def test_what_a_slow_client_has_not_read_is_bounded(monkeypatch, server):
    """Long before the alarm for clients that read nothing at all."""
    monkeypatch.setattr(link, "MOST_UNREAD", 50)
    server.engine.script = endless
    with connect(server) as connection:
        connection.sendall(request({**ASK, "stream": True}))
        wait_until(lambda: server.engine.aborts)
        text = b""
        while b"[DONE]" not in text and (part := connection.recv(65536)):
            text += part
    assert b"the client reads its answer too slowly" in text
    assert server.client.active == 0
