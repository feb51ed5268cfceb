"""Numbers for Prometheus: what the HTTP side counts itself, and the engine's latest `Stats` under the same roof."""

from __future__ import annotations

from collections import Counter as CountedWords
from collections import deque
from collections.abc import Callable, Iterator
from math import ceil
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from overdrive.types import LAUNCHES
from overdrive.wire import Stats

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
REQUEST_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
DRAFTS = {
    "offered": "Drafts proposed, by position in the row.",
    "reached": "Drafts judged: all before them were right.",
    "accepted": "Drafts accepted.",
}
FINISHES = ("stop", "length", "error", "timeout", "shutdown", "slow_client", "abort")


class Metrics:
    """One registry per server; nothing global."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine: EngineCollector | None = None
        self.pace = Pace()
        prefix = "overdrive_"
        self.requests = Counter(
            f"{prefix}requests", "Requests by endpoint and HTTP status.", ["endpoint", "status"], registry=self.registry
        )
        self.restarts = Counter(
            f"{prefix}engine_restarts",
            "Engine processes that were started in place of a dead one.",
            registry=self.registry,
        )
        self.hangs = Counter(
            f"{prefix}engine_hangs",
            "Engine processes that were killed because they were stuck.",
            registry=self.registry,
        )
        self.ready = self._gauge("ready", "1 while requests are taken, 0 while the gate is closed.")
        self.active = self._gauge("active_requests", "Answers asked of the engine and not ended.")
        self.arriving = self._gauge("arriving_bytes", "Bytes of requests that the engine does not have yet.")
        self.prompt_tokens = Counter(f"{prefix}prompt_tokens", "Prompt tokens received.", registry=self.registry)
        self.output_tokens = Counter(f"{prefix}output_tokens", "Output tokens sent.", registry=self.registry)
        self.answers = Counter(
            f"{prefix}answers", "Answers by why they ended, as clients were told.", ["finish"], registry=self.registry
        )
        for word in FINISHES:
            self.answers.labels(word)  # present from the start, so that the first of a kind is a rise
        self.queue = self._histogram("queue_seconds", "Submission to a row in the running batch.", FIRST_TOKEN_BUCKETS)
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first output token.", FIRST_TOKEN_BUCKETS
        )
        self.token = self._histogram(
            "time_per_output_token_seconds", "Mean time of an answer's tokens after the first.", TOKEN_BUCKETS
        )
        self.request = self._histogram("request_seconds", "Arrival to end of the answer.", REQUEST_BUCKETS)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"overdrive_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"overdrive_{name}", text, buckets=buckets, registry=self.registry)

    def tell(self, record: Ended, answers: int) -> None:
        """A generation request with so many answers has ended."""
        self.prompt_tokens.inc(record.prompt_tokens)
        self.output_tokens.inc(record.output_tokens)
        self.request.observe(record.ended - record.started)
        for word, count in record.finishes.items():
            self.answers.labels(word).inc(count)
        if not record.first:
            return
        self.pace.add(record.ended - record.first)
        self.queue.observe(record.queued)
        self.first_token.observe(record.first - record.started)
        later = record.output_tokens / answers - 1
        if later > 0:
            self.token.observe((record.ended - record.first) / later)

    def watch(self, latest: Callable[[], Stats]) -> None:
        """From now on this engine's statistics are part of what is shown, in place of an earlier one's."""
        if self._engine is not None:
            self.registry.unregister(self._engine)
        self._engine = EngineCollector(latest)
        self.registry.register(self._engine)

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)


class Pace:
    """How long answers took to be written lately: what somebody who finds the queue full is told to wait follows."""

    RECENT = 64
    LONGEST = 60
    GUESS = 1.0

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=self.RECENT)

    def add(self, seconds: float) -> None:
        """An answer was written in this time, waiting not counted."""
        self._seconds.append(seconds)

    def wait_for(self, waiting: int, rows: int) -> int:
        """Whole seconds, at least 1, in which about `waiting` requests get a row when `rows` are written at once."""
        mean = sum(self._seconds) / len(self._seconds) if self._seconds else self.GUESS
        return min(max(1, ceil(mean * waiting / rows)), self.LONGEST)


class Ended(Protocol):
    """A request whose output has ended, as in `record.RequestRecord`."""

    started: float
    first: float
    ended: float
    queued: float
    prompt_tokens: int
    output_tokens: int
    finishes: CountedWords[str]


class EngineCollector(Collector):
    """The engine's `Stats` as metrics. `latest` gives the newest."""

    def __init__(self, latest: Callable[[], Stats]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        stats = self._latest()
        for name, text, value in _gauges(stats):
            yield GaugeMetricFamily(f"overdrive_{name}", text, value=value)
        for name, text, value in _counters(stats):
            yield CounterMetricFamily(f"overdrive_{name}", text, value=value)
        yield from _drafts(stats)
        yield _by_label("plans", "Steps by their number of drafts per row.", "drafts", stats.plans)
        seconds = _counter("launch_seconds", "Device time by launch.", "launch")
        for launch, value in zip(LAUNCHES, stats.launch_seconds, strict=True):
            seconds.add_metric([launch], value)
        yield seconds
        rules = _counter("plan_rules", "Steps by the rule that chose their plan.", "rule")
        for rule, value in stats.planning.rules.items():
            rules.add_metric([rule], value)
        yield rules
        about = "Share of drafts accepted lately less the share that was expected, by position."
        errors = GaugeMetricFamily("overdrive_acceptance_error", about, labels=["position"])
        for position, value in enumerate(stats.planning.acceptance_errors):
            errors.add_metric([str(position)], value)
        yield errors


def _drafts(stats: Stats) -> Iterator[Metric]:
    """By source and key, those of drafts by position too. Tokens per round are draft_tokens / draft_rounds."""
    told = [((drafts.source, drafts.key), drafts) for drafts in stats.drafts]
    rounds = _counter("draft_rounds", "Row steps with drafts.", "source", "key")
    tokens = _counter("draft_tokens", "Tokens that row steps with drafts yielded.", "source", "key")
    for labels, drafts in told:
        rounds.add_metric(labels, drafts.rounds)
        tokens.add_metric(labels, drafts.rounds + sum(drafts.accepted))
    yield from (rounds, tokens)
    for name, text in DRAFTS.items():
        family = _counter(f"drafts_{name}", text, "position", "source", "key")
        for labels, drafts in told:
            for position, value in enumerate(getattr(drafts, name)):
                family.add_metric((str(position), *labels), value)
        yield family


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"overdrive_{name}", text, labels=labels)


def _gauges(stats: Stats) -> list[tuple[str, str, float]]:
    return [
        ("running", "Requests in the running batch.", stats.running),
        ("waiting", "Requests waiting for a row.", stats.waiting),
        ("kv_pages_used", "KV pages held by requests.", stats.pages_used),
        ("kv_pages_cached", "KV pages held by the prefix cache alone.", stats.pages_cached),
        ("kv_pages", "KV pages there are.", stats.pages_total),
        ("drafts", "Drafts per row of the newest plan.", stats.planning.drafts),
        ("slots_used", "Rows that hold a request.", stats.slots_used),
        ("matchers", "Requests whose output a grammar restricts.", stats.matchers),
        ("simulated_acceptance", "1 where drafts are accepted by chance, for measuring.", stats.simulated),
    ]


def _counters(stats: Stats) -> list[tuple[str, str, float]]:
    planning = stats.planning
    return [
        ("steps", "Steps of the engine.", stats.steps),
        ("rounds", "Row steps that yielded tokens.", stats.rounds),
        ("generated_tokens", "Tokens committed.", stats.generated),
        ("prefilled_tokens", "Prompt tokens computed.", stats.prefilled),
        ("submitted", "Requests that the engine took into its queue.", stats.submitted),
        ("faults", "Times launched steps were lost to a device error or to a lack of device memory.", stats.faults),
        ("preemptions", "Requests put back into the queue for lack of KV pages.", stats.preemptions),
        ("host_seconds", "Host time spent planning, building and settling steps.", stats.host_seconds),
        ("admitted_prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
        ("prefix_cached_tokens", "Admitted prompt tokens found in the prefix cache.", stats.prefix_tokens),
        ("plan_expected_tokens", "Tokens that plans expected of steps without prompts.", planning.tokens_expected),
        ("plan_found_tokens", "Tokens that steps without prompts yielded.", planning.tokens_found),
        ("plan_expected_seconds", "Time that plans expected of steps without prompts.", planning.seconds_expected),
        ("plan_found_seconds", "Time that steps without prompts took.", planning.seconds_found),
    ]


def _by_label(name: str, text: str, label: str, values: list[int]) -> Metric:
    family = _counter(name, text, label)
    for index, value in enumerate(values):
        family.add_metric([str(index)], value)
    return family
