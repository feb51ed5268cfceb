"""OpenTelemetry: a span for every request, with its time in the queue, its prefill and its decoding as children.

Spans are made when a request has ended, from its record; until then nothing is kept beside that. A `traceparent` of the
client's is honoured. Needs the extra `otel`, and is imported only where traces are asked for. As in the log, nothing
of a request's content is told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from overdrive import __version__
from overdrive.serve.guards import Ended, route
from overdrive.serve.logs import QUIET
from overdrive.serve.record import RequestRecord

EXPORT_SECONDS = 5  # for one batch of spans; what cannot be delivered is dropped


class Spans:
    """Tells `tracer` of every request that has ended, but for those that monitors make."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, scope: Scope, status: int, record: RequestRecord) -> None:
        if route(scope) in QUIET:
            return
        ended, now = time.monotonic(), time.time_ns()

        def unix(moment: float) -> int:
            """Nanoseconds of Unix time of a moment of the monotonic clock."""
            return now - int((ended - moment) * 1e9)

        span = self._tracer.start_span(
            f"{scope['method']} {route(scope)}",
            context=_parent(scope),
            kind=SpanKind.SERVER,
            attributes=_attributes(scope, status, record),
            start_time=unix(record.started),
        )
        if status >= 500 or record.failed:
            span.set_status(Status(StatusCode.ERROR))
        inside = trace.set_span_in_context(span)
        for name, begin, end in _stages(record):
            self._tracer.start_span(name, context=inside, start_time=unix(begin)).end(unix(end))
        span.end(now)


def _parent(scope: Scope) -> Context:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return TraceContextTextMapPropagator().extract(headers, Context())


def _attributes(scope: Scope, status: int, record: RequestRecord) -> dict[str, str | int | list[str]]:
    """Names are those of OpenTelemetry's conventions for HTTP and for generative models, where it has one."""
    known: dict[str, str | int | list[str]] = {
        "http.request.method": scope["method"],
        "http.route": route(scope),
        "http.response.status_code": status,
        "overdrive.request.id": record.id,
    }
    if record.fault:
        known["error.type"] = record.fault
    if record.ended:
        known |= {
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.response.finish_reasons": sorted(record.finishes),
            "overdrive.cached_tokens": record.cached_tokens,
        }
    return known


def _stages(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """
    started   submitted       admitted      first            ended
       |----------|--- queue ----|- prefill --|---- decode ----|
    """
    if not record.submitted:
        return
    if not record.first:
        yield "queue", record.submitted, record.ended or time.monotonic()
        return
    admitted = min(record.submitted + record.queued, record.first)
    yield "queue", record.submitted, admitted
    yield "prefill", admitted, record.first
    yield "decode", record.first, record.ended or time.monotonic()


@contextmanager
def exported(endpoint: str) -> Iterator[Ended]:
    """Meanwhile spans go to an OTLP collector. Raises ImportError without the extra."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "overdrive", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)))
    try:
        yield Spans(provider.get_tracer("overdrive", __version__))
    finally:
        provider.shutdown()
