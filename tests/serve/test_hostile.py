"""Laws of hostile input: whatever is sent, the answer is a 4xx that names the field, or an answer; never a 500."""

from __future__ import annotations

import json
import socket

import pytest

from overdrive.serve.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from tests.patience import PATIENCE

BASES = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/completions": {"model": "tiny", "prompt": "hi", "max_tokens": 1},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [97]},
}
MODELS = dict(zip(BASES, (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest), strict=True))


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + "1" + closing * depth


VALUES = {
    "deep list": nested(190),
    "deep object": nested(190, '{"a":', "}"),
    "deeper": nested(20_000),
    "huge integer": "9" * 400,
    "absurd integer": "-" + "9" * 5000,
    "huge float": "1e308",
    "infinite": "1e400",
    "NaN": "NaN",
    "true": "true",
    "string": '"\\u0000\\ud7ff"',
    "half a character": '"\\ud800"',
    "objects": '[{"a": null}, {}, []]',
    "mixed": '[1, "2", null, 3.5, true]',
    "object": '{"": {"type": [], "function": 1}, "type": "function", "0": "0", "$ref": "#"}',
}


@pytest.mark.parametrize("path", BASES)
def test_no_value_of_any_field_breaks_the_server(http, path):
    """A refusal names the field; where JSON itself is broken, none."""
    for field in MODELS[path].model_fields:
        rest = json.dumps({name: value for name, value in BASES[path].items() if name != field})[1:]
        for kind, value in VALUES.items():
            response = http.post(path, content=f'{{"{field}": {value}{"," if rest != "}" else ""}{rest}'.encode())
            case = (path, field, kind, response.text[:300])
            assert response.status_code in (200, 400, 404), case
            if response.status_code == 200:
                continue
            error = response.json()["error"]
            assert error["message"].isprintable(), case
            named = (error["param"] or "").startswith(field) or field in error["message"]
            assert named or "not valid JSON" in error["message"], case


INSIDE = {
    "/v1/chat/completions": [
        '"messages": [%s]',
        '"messages": [{"role": "user", "content": %s}]',
        '"messages": [{"role": "user", "content": [{"type": "text", "text": %s}]}]',
        '"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": %s}}]}]',
        '"messages": [{"role": "tool", "tool_call_id": %s, "content": "x"}]',
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": %s}}]',
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": %s}}}]',
        '"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": %s}}',
        '"chat_template_kwargs": {"enable_thinking": %s}',
        '"speculation": {"max_drafts": %s}',
        '"stream_options": {"include_usage": %s}, "stream": true',
    ],
    "/v1/completions": ['"prompt": [%s]', '"prompt": [[97, %s]]', '"logit_bias": {"97": %s}', '"stop": ["a", %s]'],
}


@pytest.mark.parametrize("path", INSIDE)
def test_nor_does_any_value_inside_of_one(http, path):
    for place in INSIDE[path]:
        own = place.partition(":")[0].strip('"')
        rest = json.dumps({name: value for name, value in BASES[path].items() if name != own})[1:]
        for kind, value in VALUES.items():
            response = http.post(path, content=f"{{{place % value}, {rest}".encode())
            case = (path, place, kind, response.text[:300])
            assert response.status_code in (200, 400), case
            if response.status_code == 400:
                assert "not valid JSON" in response.json()["error"]["message"] or response.json()["error"]["param"], (
                    case
                )


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "tiny", "prompt": "a", "prompt": "b"}',
        '{"model": "tiny", "prompt": "a"} {"model": "tiny"}',
        '{"model": "tiny", "prompt": "a",}',
        "{'model': 'tiny', 'prompt': 'a'}",
        '\ufeff{"model": "tiny", "prompt": "a"}',
        "\x00" * 1000,
        "1" * 100_000,
        '"' + "\\" * 9999,
    ],
)
def test_nor_does_json_that_is_hardly_any(http, body):
    assert http.post("/v1/completions", content=body.encode()).status_code in (200, 400)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
RAW = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "header flood": HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)),
    "one long header": HEAD + b"X: " + b"y" * 300_000,
    "long path": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no length that counts": HEAD + b"Content-Length: abc\r\n\r\n",
    "absurd length": HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "large length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
    "negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "no such transfer": HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
    "bare line feeds": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "escapes in the path": b"GET /v1/models/%ff%00%2e%2e%2f HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "websocket": b"GET /v1/completions HTTP/1.1\r\nHost: [::1]\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "unknown method": b"BREW /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "trace": b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "whole address": b"GET http://evil/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "key of bytes": HEAD + b"Authorization: Bearer \xff\xfe\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_hardly_http_are_refused_and_cost_nobody_else(http, server, caplog, name):
    host, port = server.url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        try:
            connection.sendall(RAW[name])
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
        except OSError:  # it has hung up already
            pass
    assert answer == b"" or answer[9:10] == b"4" or (answer[9:12] == b"200" and b"/health" in RAW[name]), answer[:300]
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert http.get("/health").status_code == 200
