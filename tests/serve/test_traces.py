"""Laws of traces: a request is one span, its stages follow each other inside, and the client's trace goes on."""

from __future__ import annotations

import gzip
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

pytest.importorskip("opentelemetry.trace")

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode

from overdrive.errors import OverdriveError
from overdrive.serve.server import traced
from overdrive.serve.traces import Spans
from overdrive.types import FinishReason
from overdrive.wire import Tokens
from tests.patience import PATIENCE, wait_until

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
ASK = {"model": "tiny", "prompt": "secret"}


class Span(NonRecordingSpan):
    """A span that keeps what it was told."""

    def __init__(self, number: int, name: str, parent: SpanContext, start: int, attributes) -> None:
        super().__init__(SpanContext(parent.trace_id, number, is_remote=False))
        self.name, self.parent, self.start, self.attributes = name, parent, start, dict(attributes or {})
        self.stop, self.status = 0, None

    def set_status(self, status, description=None) -> None:
        self.status = status.status_code

    def end(self, end_time=None) -> None:
        self.stop = end_time


class Notes:
    """A tracer that keeps every span, in order."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name, context=None, kind=None, attributes=None, links=None, start_time=None, **_):
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append(Span(len(self.spans) + 1, name, parent, start_time, attributes))
        return self.spans[-1]

    def wait(self, count: int) -> list[Span]:
        wait_until(lambda: len(self.spans) >= count and self.spans[0].stop, "spans are missing")
        return self.spans


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def url(make_server, notes):
    """A server that tells these notes of its requests."""
    server = make_server(watchers=(Spans(notes),))
    server.engine.script = lambda submit: iter(
        [Tokens(submit.id, [97], queued=1e-6), Tokens(submit.id, [98], finish=FinishReason.LENGTH, queued=1e-6)]
    )
    return server.url


def test_stages_follow_each_other_within_the_request(url, notes):
    httpx.post(f"{url}/v1/completions", json=ASK, headers={"X-Request-Id": "abc"})
    request, queue, prefill, decode = notes.wait(4)
    assert [span.name for span in notes.spans] == ["POST /v1/completions", "queue", "prefill", "decode"]
    assert {span.parent.span_id for span in (queue, prefill, decode)} == {request.get_span_context().span_id}
    edges = [request.start, queue.start, queue.stop, prefill.stop, decode.stop, request.stop]
    assert edges == sorted(edges)
    assert (queue.stop, prefill.stop) == (prefill.start, decode.start)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "overdrive.request.id": "abc",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["length"],
        "overdrive.cached_tokens": 0,
    }
    assert request.status is None


def test_the_clients_trace_goes_on(url, notes):
    header = f"00-{TRACE:032x}-{PARENT:016x}-01"
    httpx.post(f"{url}/v1/completions", json=ASK, headers={"traceparent": header})
    request = notes.wait(4)[0]
    assert (request.parent.trace_id, request.parent.span_id) == (TRACE, PARENT)


@pytest.mark.parametrize("header", ["", "00-0-0-0", "nonsense", "00-" + "f" * 400])
def test_a_trace_that_is_none_is_ignored(url, notes, header):
    assert httpx.post(f"{url}/v1/completions", json=ASK, headers={"traceparent": header}).status_code == 200
    assert not notes.wait(4)[0].parent.is_valid


def test_a_refusal_has_no_stages_and_monitors_leave_no_spans(url, notes):
    httpx.get(f"{url}/health")
    httpx.post(f"{url}/v1/completions", json={**ASK, "n": 0})
    (request,) = notes.wait(1)
    assert (request.attributes["http.response.status_code"], request.attributes["error.type"]) == (400, "invalid_value")
    assert request.status is None


def test_a_failure_is_marked(make_server, notes):
    server = make_server(watchers=(Spans(notes),))
    server.engine.script = lambda submit: iter([Tokens(submit.id, finish=FinishReason.ERROR, error="no")])
    httpx.post(f"{server.url}/v1/completions", json=ASK)
    request, queue = notes.wait(2)
    assert (request.status, queue.name) == (StatusCode.ERROR, "queue")


def test_spans_arrive_at_a_collector(make_server):
    """Through the real exporter, which the extra `otel` brings."""
    pytest.importorskip("opentelemetry.sdk.trace")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    arrived = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            arrived.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        with traced(f"http://127.0.0.1:{collector.server_port}/v1/traces") as watchers:
            told = threading.Event()
            url = make_server(watchers=(*watchers, lambda *_: told.set())).url
            assert httpx.post(f"{url}/v1/completions", json=ASK).status_code == 200
            assert told.wait(PATIENCE)
        collector.shutdown()
    spans = [span for sent in arrived for part in sent.resource_spans for s in part.scope_spans for span in s.spans]
    root = next(span for span in spans if span.name == "POST /v1/completions")
    assert {span.name for span in spans if span.parent_span_id == root.span_id} == {"queue", "prefill", "decode"}
    assert "secret" not in str(arrived)


def test_traces_without_the_extra_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(OverdriveError, match=r"overdrive-llm\[otel\]"), traced("http://127.0.0.1:9/v1/traces"):
        pass
