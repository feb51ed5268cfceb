"""What is refused, how, and that it happens before a stream begins."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from overdrive.serve.service import Closed
from overdrive.wire import Tokens
from tests.patience import wait_until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TOOL = {"type": "function", "function": {"name": "f"}}
STRING_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
NEGATION_TOOL = {"type": "function", "function": {"name": "g", "parameters": {"properties": {"a": {"not": {}}}}}}
CHOICE = {"type": "function", "function": {"name": "g"}}
DEEP = json.loads('{"not":' * 129 + "{}" + "}" * 129)

BOTH = [
    ({"model": "gpt"}, 404, "model"),
    ({"temperature": -0.1}, 400, "temperature"),
    ({"temperature": "0.5"}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p"),
    ({"top_p": 1.1}, 400, "top_p"),
    ({"top_k": -2}, 400, "top_k"),
    ({"top_k": 1.5}, 400, "top_k"),
    ({"min_p": 2}, 400, "min_p"),
    ({"n": 0}, 400, "n"),
    ({"n": 129}, 400, "n"),
    ({"n": 13}, 400, "n"),
    ({"n": True}, 400, "n"),
    ({"seed": 1 << 63}, 400, "seed"),
    ({"seed": "x"}, 400, "seed"),
    ({"stop": ""}, 400, "stop"),
    ({"stop": ["a", ""]}, 400, "stop[1]"),
    ({"stop": ["a"] * 17}, 400, "stop"),
    ({"stop": "a" * 1025}, 400, "stop"),
    ({"stop": ["a" * 600, "b" * 600]}, 400, "stop"),
    ({"stop": 5}, 400, "stop"),
    ({"stop_token_ids": [-1]}, 400, "stop_token_ids[0]"),
    ({"stop_token_ids": [259]}, 400, "stop_token_ids"),
    ({"presence_penalty": 2.5}, 400, "presence_penalty"),
    ({"frequency_penalty": -3}, 400, "frequency_penalty"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty"),
    ({"logit_bias": {"65": 101}}, 400, "logit_bias.65"),
    ({"logit_bias": {"a": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"259": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, 400, "logit_bias"),
    ({"max_tokens": 1000}, 400, "max_tokens"),
    ({"max_tokens": -1}, 400, "max_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, 400, "min_tokens"),
    ({"min_tokens": -1}, 400, "min_tokens"),
    ({"prompt_logprobs": 21}, 400, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
    ({"stream": 1}, 400, "stream"),
    ({"stream_options": {"include_usage": True}, "stream": False}, 400, "stream_options"),
    ({"stream_options": {"what": True}, "stream": True}, 400, "stream_options.what"),
    ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, 400, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, 400, "regex"),
    ({"guided_json": "{"}, 400, "guided_json"),
    ({"guided_json": "[]"}, 400, "guided_json"),
    ({"guided_json": 5}, 400, "guided_json"),
    ({"guided_choice": []}, 400, "guided_choice"),
    ({"guided_choice": ["a", ""]}, 400, "guided_choice[1]"),
    ({"guided_regex": ""}, 400, "guided_regex"),
    ({"guided_regex": "a" * 20_000}, 400, "guided_regex"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, 400, "guided_choice"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, 400, "structured_outputs.choice"),
    ({"structured_outputs": {"structural_tag": "a"}}, 400, "structured_outputs.structural_tag"),
    ({"json_schema": DEEP}, 400, "json_schema"),
    ({"ebnf": 5}, 400, "ebnf"),
    ({"speculation": {"max_drafts": -1}}, 400, "speculation.max_drafts"),
    ({"speculation": {"depth": 3}}, 400, "speculation.depth"),
    ({"speculation": True}, 400, "speculation"),
    ({"speculation": "deep"}, 400, "speculation"),
    ({"speculation": "fixed:3"}, 400, "speculation"),
    ({"speculation": "max:-1"}, 400, "speculation"),
    ({"speculation": "max:99"}, 400, "speculation.max_drafts"),
    ({"best_off": 1}, 400, "best_off"),
]
CHAT_ONLY = [
    ({"messages": []}, 400, "messages"),
    ({"messages": "hi"}, 400, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x", "color": 1}]}, 400, "messages[0].color"),
    ({"messages": [{"role": "user", "content": "x" * 200}]}, 400, "messages"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, 400, "max_tokens"),
    ({"max_completion_tokens": 1000}, 400, "max_completion_tokens"),
    ({"tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools[0].function.name"),
    ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, 400, "tools[1].function.name"),
    ({"tools": [TOOL] * 129}, 400, "tools"),
    ({"tools": [STRING_TOOL]}, 400, "tools[0].function.parameters"),
    ({"tools": [TOOL, NEGATION_TOOL]}, 400, "tools[1].function.parameters"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, 400, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": CHOICE}, 400, "tool_choice.function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, 400, "tool_choice.function"),
    ({"tools": [TOOL], "tool_choice": "required", "guided_json": {}}, 400, "guided_json"),
    ({"tools": [TOOL], "guided_regex": "a"}, 400, "guided_regex"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"tool_choice": CHOICE}, 400, "tool_choice"),
    ({"functions": [{"name": "f"}]}, 400, "functions"),
    ({"function_call": {"name": "f"}}, 400, "function_call"),
    ({"top_logprobs": 2}, 400, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ({"logprobs": 2}, 400, "logprobs"),
    ({"modalities": ["audio"]}, 400, "modalities[0]"),
    ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
    ({"echo": True}, 400, "echo"),
]
TEXT_ONLY = [
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": [[]]}, 400, "prompt[0]"),
    ({"prompt": ["a", 5]}, 400, "prompt[1]"),
    ({"prompt": [259]}, 400, "prompt"),
    ({"prompt": [-1]}, 400, "prompt[0]"),
    ({"prompt": "", "add_special_tokens": False}, 400, "prompt"),
    ({"prompt": "x" * 200}, 400, "prompt"),
    ({"prompt": ["a"] * 257}, 400, "prompt"),
    ({"prompt": None}, 400, "prompt"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"logprobs": 21}, 400, "logprobs"),
    ({"logprobs": True}, 400, "logprobs"),
    ({"best_of": 3}, 400, "best_of"),
    ({"suffix": "end"}, 400, "suffix"),
    ({"tools": []}, 400, "tools"),
]
CASES = [("/v1/chat/completions", CHAT, *case) for case in BOTH + CHAT_ONLY]
CASES += [("/v1/completions", TEXT, *case) for case in BOTH + TEXT_ONLY]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "base", "change", "status", "param"), CASES)
def test_a_refusal_names_the_parameter_before_any_stream(http, server, path, base, change, status, param, stream):
    response = http.post(path, json={**base, **({"stream": True} if stream else {}), **change})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert "\n" not in error["message"]
    assert server.engine.submits == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "tiny", "messages": NaN}',
        b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}',
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_bytes_that_are_no_request_are_400(http, body):
    response = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["\n\x1b[31mred", "\u2028", "y" * 100_000], ids=["control", "separator", "long"])
def test_a_field_name_cannot_get_control_characters_or_length_into_messages(http, name):
    error = http.post("/v1/completions", json={**TEXT, name: 1}).json()["error"]
    assert error["message"].isprintable() and error["param"].isprintable()
    assert len(error["message"]) < 300


def test_an_empty_list_is_refused_without_words_about_how_it_was_checked(http):
    error = http.post("/v1/chat/completions", json={"model": "tiny", "messages": []}).json()["error"]
    assert error["message"] == "messages: list should have at least 1 item, not 0"


def test_too_long_names_both_numbers(http):
    message = http.post("/v1/completions", json={**TEXT, "prompt": "x" * 300}).json()["error"]["message"]
    assert "301" in message
    assert "200" in message
    message = http.post("/v1/completions", json={**TEXT, "max_tokens": 250}).json()["error"]["message"]
    assert "250" in message
    assert "200" in message


def test_a_prompt_that_leaves_one_token_is_served(http):
    answer = http.post("/v1/completions", json={**TEXT, "prompt": [97] * 199}).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert http.post("/v1/completions", json={**TEXT, "prompt": [97] * 200}).status_code == 400


def test_an_unknown_field_is_named_with_what_can_be_done(http):
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    for field in ("reasoning_effort", "no_such_field"):
        error = http.post("/v1/chat/completions", json={**chat, field: "low"}).json()["error"]
        assert (error["param"], error["code"]) == (field, "unknown_parameter")
        assert error["message"].startswith(f"unknown field: {field}") and "--lenient" in error["message"]
        assert ("chat_template_kwargs" in error["message"]) == (field == "reasoning_effort")


def test_unknown_fields_pass_a_lenient_server(make_server):
    url = make_server(lenient=True).url + "/v1/chat/completions"
    assert httpx.post(url, json={**CHAT, "what": 1, "max_tokens": 1}).status_code == 200
    assert httpx.post(url, json={**CHAT, "n": 0}).status_code == 400


def test_a_large_body_is_413_declared_or_chunked(make_server):
    url = make_server(max_body_bytes=1000).url + "/v1/chat/completions"
    large = b'{"x": "' + b"x" * 2000 + b'"}'
    for content in (large, iter([large[:900], large[900:]])):
        response = httpx.post(url, content=content)
        assert response.status_code == 413
        assert "1000" in response.json()["error"]["message"]


def test_the_key_is_asked_for(make_server):
    url = make_server(api_key=("sesame",)).url
    for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic sesame"}):
        response = httpx.get(f"{url}/v1/models", headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer sesame"}).status_code == 200
    assert httpx.get(f"{url}/health").status_code == 200


def test_browsers_of_named_origins_may_call(make_server):
    url = make_server(cors_origin=("http://a.example",), api_key=("k",)).url + "/v1/chat/completions"
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = httpx.options(url, headers={"Origin": "http://a.example", **asks})
    assert allowed.headers["access-control-allow-origin"] == "http://a.example"
    assert (
        "access-control-allow-origin" not in httpx.options(url, headers={"Origin": "http://b.example", **asks}).headers
    )


def test_a_full_queue_is_429_with_retry_after(http, server):
    server.engine.script = lambda submit: iter(lambda: Tokens(submit.id), None)
    blockers = [_blocked(server) for _ in range(12)]
    try:
        response = http.post("/v1/completions", json=TEXT)
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert response.json()["error"]["code"] == "queue_full"
    finally:
        for blocker in blockers:
            blocker.close()
    wait_until(lambda: server.client.active == 0)
    server.engine.reset()
    assert http.post("/v1/completions", json=TEXT).status_code == 200


def _blocked(server):
    """A raw connection with a request that is never answered."""
    before = server.client.active
    body = json.dumps(TEXT).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    wait_until(lambda: server.client.active > before)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(server, stream):
    server.engine.script = lambda submit: iter(lambda: Tokens(submit.id), None)
    body = json.dumps({**TEXT, "stream": stream, "n": 2}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: len(server.engine.submits) == 2)
    wait_until(lambda: len(server.engine.aborts) == 2)
    assert sorted(server.engine.aborts) == sorted(submit.id for submit in server.engine.submits)
    assert server.client.active == 0


def test_a_client_that_leaves_within_its_body_is_no_failure(http, server, caplog):
    """Nor anything for the log: clients break connections all the time."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99\r\n\r\n{{".encode())
        wait_until(lambda: server.gate.entrance.held > 0)
    left = 'overdrive_requests_total{endpoint="/v1/completions",status="499"}'
    wait_until(lambda: left in http.get("/metrics").text)
    assert not caplog.records


def test_a_client_that_leaves_a_running_stream_aborts_it(client, server):
    def script(submit):
        while True:
            yield Tokens(submit.id, [97])

    server.engine.script = script
    stream = client.completions.create(**TEXT, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: len(server.engine.aborts) == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_is_given_up(make_server, stream):
    server = make_server(request_seconds=0.2)
    server.engine.script = lambda submit: iter(lambda: Tokens(submit.id), None)
    response = httpx.post(f"{server.url}/v1/completions", json={**TEXT, "stream": stream})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (504, "server_error", "timeout")
    assert error["message"] == "the answer was not complete after 0.2 seconds, which is this server's limit"
    wait_until(lambda: len(server.engine.aborts) == 1)
    assert server.client.active == 0


def test_closed_doors_are_503_and_health_says_why(http, server):
    ready = server.gate.state
    try:
        for status in ("loading", "draining"):
            server.gate.state = Closed(status, f"the server is {status}")
            for response in (http.post("/v1/completions", json=TEXT), http.get("/v1/models")):
                assert (response.status_code, response.headers["retry-after"]) == (503, "5")
            assert (http.get("/health").status_code, http.get("/health").json()["status"]) == (503, status)
    finally:
        server.gate.state = ready
    assert http.get("/health").json() == {"status": "ready"}


def test_health_can_be_asked_without_a_body(http, server):
    """Some load balancers and monitors ask with HEAD."""
    answer = http.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")
    ready, server.gate.state = server.gate.state, Closed("draining", "the server is draining")
    try:
        assert http.head("/health").status_code == 503
    finally:
        server.gate.state = ready


def test_unknown_paths_and_methods_have_the_same_shape(http):
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    response = http.get("/v1/chat/completions")
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (405, "invalid_request_error", "method_not_allowed")
    assert error["message"] == "GET is not what this path takes, which is POST"
    assert http.get("/v1/models/gpt").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/chat/completions", "there is nothing at '/chat/completions'; there is /v1/chat/completions"),
        ("/v1/v1/completions", "there is nothing at '/v1/v1/completions'; there is /v1/completions"),
        ("/v1/metrics", "there is nothing at '/v1/metrics'; there is /metrics"),
        ("/v1/embeddings", "there is nothing at '/v1/embeddings'"),
        ("/a%0Ab" + "c" * 1000, "there is nothing at '/a\\nb" + "c" * 96 + "'"),
    ],
)
def test_a_path_that_is_not_there_is_named_and_the_one_meant(http, path, message):
    """A base address without /v1, or with /v1 twice, is the first mistake of many."""
    response = http.post(path, json={})
    assert (response.status_code, response.json()["error"]["message"]) == (404, message)


def test_a_dead_engine_ends_requests_with_an_error(make_server):
    server = make_server()

    def script(submit):
        yield Tokens(submit.id, [97])
        server.loop.call_soon_threadsafe(server.client.fail, "the engine process ended (exit code -9)")
        while True:
            yield Tokens(submit.id)

    server.engine.script = script
    response = httpx.post(f"{server.url}/v1/completions", json=TEXT)
    assert response.status_code == 500
    assert "exit code -9" in response.json()["error"]["message"]
    assert httpx.get(f"{server.url}/health").status_code == 503
    assert httpx.post(f"{server.url}/v1/completions", json=TEXT).status_code == 503
