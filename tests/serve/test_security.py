"""Laws of strangers: who may ask, what browsers are told, and what is never written down."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import socket
import threading

import httpx
import pytest

from overdrive.config import ServerOptions
from overdrive.errors import OverdriveError
from overdrive.serve import completions
from overdrive.serve.keys import all_keys, warning
from overdrive.serve.logs import logs
from tests.patience import PATIENCE, wait_until

SECRET = "Xyzzy-Plugh"
ASK = {"model": "tiny", "prompt": SECRET}


@pytest.fixture
def logged(server):
    """What the server logs meanwhile: so many lines, or more, as soon as they are there."""
    stream = io.StringIO()

    def lines(count):
        wait_until(lambda: stream.getvalue().count("\n") >= count, "lines are missing")
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    with logs("json", "debug", stream):
        yield lines


def test_every_key_of_command_line_and_file_opens_the_door(make_server, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nsesame\n\n  alibaba \n")
    keys = all_keys(ServerOptions(api_key=("open",), api_key_file=str(file)))
    assert keys == ("open", "sesame", "alibaba")
    url = make_server(api_key=keys).url + "/v1/models"
    for key in keys:
        assert httpx.get(url, headers={"Authorization": f"Bearer {key}"}).status_code == 200
    for key in ("ours", "# ours", "sesam", "sesame2", "", "open sesame"):
        assert httpx.get(url, headers={"Authorization": f"Bearer {key}".strip()}).status_code == 401


def test_what_was_refused_is_counted_by_the_endpoint_that_it_asked_for(make_server, caplog):
    """Paths that nobody declared count as one."""
    caplog.set_level(logging.INFO, "overdrive.serve")
    url = make_server(api_key=("sesame",)).url
    paths = ["/v1/models", "/v1/models/any/name", "/nowhere", "/nowhere/else"]
    mine = {"X-Request-Id": "refused"}
    assert [httpx.get(url + path, headers=mine).status_code for path in paths] == [401] * 4

    def fields():
        """Of the lines, which follow answers, and may follow those of an earlier test."""
        found = [record.fields for record in list(caplog.records) if record.getMessage() == "request"]
        return [one for one in found if one["id"] == "refused"]

    wait_until(lambda: len(fields()) == 4, "lines are missing")
    assert sorted(f["endpoint"] for f in fields()) == ["/v1/models", "/v1/models/{name:path}", "other", "other"]
    assert {f["code"] for f in fields()} == {"invalid_api_key"}
    counted = httpx.get(url + "/metrics", headers={"Authorization": "Bearer sesame"}).text
    assert 'overdrive_requests_total{endpoint="/v1/models",status="401"} 1.0' in counted
    assert 'overdrive_requests_total{endpoint="other",status="401"} 2.0' in counted


@pytest.mark.parametrize("text", ["", "# nothing\n", "two words\n", "schlüssel\n"])
def test_a_key_file_that_would_leave_the_door_open_is_refused(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(OverdriveError, match=r"^--api-key"):
        all_keys(ServerOptions(api_key_file=str(file)))


def test_a_key_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OverdriveError, match=r"^--api-key-file"):
        all_keys(ServerOptions(api_key_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("127.0.0.1", (), False),
        ("127.9.9.9", (), False),
        ("localhost", (), False),
        ("::1", (), False),
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("10.0.0.7", (), True),
        ("gpu.example", (), True),
        ("0.0.0.0", ("k",), False),
    ],
)
def test_a_server_that_anybody_can_use_says_so(host, keys, warned):
    assert bool(warning(ServerOptions(host=host, api_key=keys))) is warned


def test_the_server_listens_to_this_machine_alone_unless_told_otherwise():
    assert ServerOptions().host == "127.0.0.1"


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/health", "/metrics", "/nowhere", "/openapi.json", "/v1/completions"]
)
def test_every_answer_carries_the_headers_of_safety(http, path):
    headers = http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "server" not in headers


def test_pages_of_other_sites_cannot_make_the_model_work(make_server):
    """A form or a fetch without CORS is sent by browsers without asking first."""
    url = make_server(cors_origin=("http://a.example",)).url + "/v1/completions"
    for origin, site, status in (
        ("http://b.example", "cross-site", 403),
        ("http://b.example", "same-site", 403),
        ("http://a.example", "cross-site", 200),
        (None, None, 200),
        ("http://self", "same-origin", 200),
        ("http://b.example", None, 403),  # what browsers say to an address that they do not trust
        ("http://a.example", None, 200),
        ("null", None, 403),
        (url.removesuffix("/v1/completions"), None, 200),
    ):
        headers = {name: value for name, value in (("Origin", origin), ("Sec-Fetch-Site", site)) if value}
        response = httpx.post(url, json={"model": "tiny", "prompt": "x", "max_tokens": 1}, headers=headers)
        assert response.status_code == status, (origin, site)


@pytest.mark.parametrize("path", ["/", "/live", "/metrics", "/server_info", "/v1/models"])
def test_a_name_that_a_page_had_resolve_to_this_machine_is_not_answered_to(make_server, path):
    """DNS rebinding: to the browser such a page is the server's own."""
    server = make_server(allowed_host=("llm.example",))
    for host, refused in (
        ("rebound.example", True),
        ("rebound.example:8000", True),
        ("127.0.0.1.rebound.example", True),
        ("[::1", True),
        ("llm.example", False),
        ("LLM.example:443", False),
        ("localhost:8000", False),
        ("app.localhost", False),
        ("127.0.0.1", False),
        ("[::1]:8000", False),
    ):
        with httpx.stream("GET", server.url + path, headers={"Host": host}) as response:
            assert (response.status_code == 403) == refused, host


def test_a_key_is_enough_whatever_the_name(make_server):
    url = make_server(api_key=("k",)).url + "/v1/models"
    headers = {"Host": "rebound.example"}
    assert httpx.get(url, headers=headers).status_code == 401
    assert httpx.get(url, headers={**headers, "Authorization": "Bearer k"}).status_code == 200


@pytest.mark.parametrize("given", ["a1-B2_c:3", "x" * 128])
def test_a_sane_request_id_is_kept(http, given):
    assert http.post("/v1/completions", json=ASK, headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", 'a"b', "a\tb", "ä"])
def test_any_other_request_id_is_replaced(http, given):
    headers = [(b"X-Request-Id", given.encode())]
    answered = http.post("/v1/completions", json=ASK, headers=headers).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", answered)


def test_refusals_carry_the_request_id_too(http):
    for path in ("/v1/completions", "/nowhere"):
        assert http.post(path, json={}, headers={"X-Request-Id": "abc"}).headers["x-request-id"] == "abc"


def test_a_request_is_one_line_with_its_numbers(http, logged):
    http.post("/v1/completions", json={**ASK, "stream": True, "max_tokens": 5}, headers={"X-Request-Id": "abc"})
    http.post("/v1/completions", json={**ASK, "n": 0}, headers={"X-Request-Id": "refused"})
    http.get("/health", headers={"X-Request-Id": "probe"})

    def by_id():
        """Lines follow answers, in any order, and may follow those of an earlier test."""
        return {line["id"]: line for line in logged(0)}

    wait_until(lambda: by_id().keys() >= {"abc", "refused", "probe"}, "lines are missing")
    lines = by_id()
    whole = lines["abc"]
    measured = ("time", "seconds", "first_token_seconds")
    assert {name: value for name, value in whole.items() if name not in measured} == {
        "level": "info",
        "event": "request",
        "id": "abc",
        "endpoint": "/v1/completions",
        "method": "POST",
        "status": 200,
        "stream": True,
        "prompt_tokens": len(SECRET) + 1,
        "cached_tokens": 2,
        "output_tokens": 5,
        "queue_seconds": 0.25,
        "finish": "length",
    }
    assert (lines["refused"]["status"], lines["refused"]["code"]) == (400, "invalid_value")
    assert (lines["probe"]["status"], lines["probe"]["level"]) == (200, "debug")


def test_nothing_of_a_request_is_logged(http, server, logged, monkeypatch):
    def fail(*_):
        raise RuntimeError(f"cannot bear {SECRET}")

    http.post("/v1/completions", json=ASK)
    http.post("/v1/completions", json={**ASK, SECRET: 1})
    http.post("/v1/completions", content=f'{{"model": "{SECRET}"')
    http.post(f"/{SECRET}?{SECRET}", json=ASK)
    http.get(f"/v1/models/{SECRET}")
    monkeypatch.setattr(completions, "read_prompts", fail)
    broken = http.post("/v1/completions", json=ASK)
    assert broken.status_code == 500
    assert SECRET not in broken.text
    lines = logged(7)
    assert {line["event"] for line in lines} == {"request", "request failed"}
    (failure,) = (line for line in lines if line["event"] == "request failed")
    assert failure["error"] == "RuntimeError"
    assert re.match(r"test_security\.py:\d+ < completions\.py:\d+", failure["at"])
    assert SECRET not in json.dumps(lines)


def test_lines_of_text_cannot_be_forged():
    stream = io.StringIO()
    with logs("text", "info", stream):
        fields = {"id": "a", "code": 'x status=200\nyesterday info request id="b"'}
        logging.getLogger("overdrive.test").info("request", extra={"fields": fields})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(' info request id=a code="x status=200\\nyesterday info request id=\\"b\\""')


def test_clients_that_reset_their_connections_do_not_fill_the_log():
    async def write_on() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        theirs.close()
        for _ in range(20):
            transport.write(b"token")
        transport.abort()

    stream = io.StringIO()
    with logs("text", "debug", stream):
        asyncio.run(write_on())
        logging.getLogger("asyncio").warning("something else")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("something else")


def test_a_log_that_nobody_reads_holds_nothing_up():
    class Stuck(io.StringIO):
        def write(self, _: str) -> int:
            reached.append(1)
            release.wait(PATIENCE)
            return 0

    reached, release = [], threading.Event()
    with logs("text", "info", Stuck()):
        for _ in range(20_000):
            logging.getLogger("overdrive.test").info("more")
    assert reached == [1]
    release.set()
