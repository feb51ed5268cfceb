"""From the answers of a block to its figures: throughput of the steady part, times to first token and per token.

Pure arithmetic over samples. Formulas: time per output token = (end - first) / (n - 1), since gaps between chunks
mislead when a chunk holds several tokens; tokens within a window are spread evenly between an answer's first and last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.bench.client import Sample
from overdrive.bench.records import Measured

LEAST_STEADY = 0.3  # share of a block that its steady part must have to be used in its place


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of a set of values; all nan when it is empty."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a block came to. Times in seconds, of whole answers alone.

    tokens_per_s: output, in the window of `window` seconds (steady: of the time when all users were being answered;
    else of the whole block). users: answers under way, on average over the window.
    plans: steps by number of drafts per row; acceptance: by position; both empty where the server does not tell.
    """

    tokens_per_s: float
    requests_per_s: float
    first: Quantiles
    per_token: Quantiles
    latency: Quantiles
    users: float
    window: float
    steady: bool
    requests: int
    errors: int
    output_tokens: int
    drafts_offered: int
    drafts_accepted: int
    tokens_per_round: float
    cached_share: float
    plans: dict[int, float]
    acceptance: list[float]


def figures(measured: Measured, closed: bool) -> Figures:
    """closed: as many users as the block's load all the time, so that there is a steady part to look for."""
    good = [sample for sample in measured.samples if not sample.error]
    begin, end, steady = _window(good, round(measured.load)) if closed else (0.0, measured.seconds, False)
    window = max(end - begin, 1e-9)
    rounds = sum(sample.rounds for sample in good)
    tokens = sum(sample.output_tokens for sample in good)
    told = [sample for sample in good if sample.rounds]
    return Figures(
        tokens_per_s=sum(tokens_within(sample, begin, end) for sample in good) / window,
        requests_per_s=sum(begin < sample.end <= end for sample in good) / window,
        first=quantiles([sample.first - sample.start for sample in good if sample.first]),
        per_token=quantiles([per_token(sample) for sample in good if sample.output_tokens > 1 and sample.first]),
        latency=quantiles([sample.end - sample.start for sample in good]),
        users=sum(_overlap(sample.start, sample.end, begin, end) for sample in good) / window,
        window=window,
        steady=steady,
        requests=len(good),
        errors=len(measured.samples) - len(good),
        output_tokens=tokens,
        drafts_offered=sum(sample.accepted + sample.rejected for sample in good),
        drafts_accepted=sum(sample.accepted for sample in good),
        tokens_per_round=sum(sample.output_tokens for sample in told) / rounds if rounds else math.nan,
        cached_share=sum(one.cached_tokens for one in good) / max(1, sum(one.prompt_tokens for one in good)),
        plans=_plans(measured.counters),
        acceptance=_acceptance(measured.counters),
    )


def per_token(sample: Sample) -> float:
    """Seconds per output token behind the first one."""
    return (sample.end - sample.first) / (sample.output_tokens - 1)


def tokens_within(sample: Sample, begin: float, end: float) -> float:
    """Output tokens between `begin` and `end`."""
    if not sample.output_tokens:
        return 0.0
    first = sample.first or sample.end
    length = sample.end - first
    share = _overlap(first, sample.end, begin, end) / length if length > 0 else float(begin <= sample.end <= end)
    return float(begin <= first <= end) + (sample.output_tokens - 1) * share


def _window(samples: Sequence[Sample], users: int) -> tuple[float, float, bool]:
    """From when every user had his first token until the first one found no request left.

             first tokens: users-th      answers left: users - 1
    |---------------|=======================|-----------|
    start                  steady                      end
    """
    if not samples:
        return 0.0, 0.0, False
    firsts = sorted(sample.first or sample.end for sample in samples)
    ends = sorted(sample.end for sample in samples)
    whole = (min(sample.start for sample in samples), ends[-1])
    if len(samples) < users:
        return *whole, False
    begin, end = firsts[users - 1], ends[len(ends) - users]
    if end - begin < LEAST_STEADY * (whole[1] - whole[0]):
        return *whole, False
    return begin, end, True


def _overlap(a: float, b: float, begin: float, end: float) -> float:
    return max(0.0, min(b, end) - max(a, begin))


def quantiles(values: Sequence[float]) -> Quantiles:
    """Each the smallest value that at least so large a share of them does not exceed."""
    ordered = sorted(values)
    if not ordered:
        return Quantiles(math.nan, math.nan, math.nan)
    p50, p95, p99 = (ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.50, 0.95, 0.99))
    return Quantiles(p50, p95, p99)


def _plans(counters: dict[str, float]) -> dict[int, float]:
    """Steps of the engine by drafts per row, from overdrive_plans_total{drafts="K"}."""
    prefix = 'overdrive_plans_total{drafts="'
    return {int(name[len(prefix) : -2]): steps for name, steps in counters.items() if name.startswith(prefix)}


def _acceptance(counters: dict[str, float]) -> list[float]:
    """Share of judged drafts that were accepted, by position, over all drafters."""
    reached, accepted = (_by_position(counters, f"overdrive_drafts_{kind}_total") for kind in ("reached", "accepted"))
    return [accepted.get(position, 0.0) / reached[position] for position in sorted(reached) if reached[position]]


def _by_position(counters: dict[str, float], metric: str) -> dict[int, float]:
    sums: dict[int, float] = {}
    for name, value in counters.items():
        if name.startswith(f"{metric}{{") and 'position="' in name:
            position = int(name.partition('position="')[2].partition('"')[0])
            sums[position] = sums.get(position, 0.0) + value
    return sums


def timeline(measured: Measured, bins: int) -> list[tuple[float, float, float]]:
    """(middle in seconds, tokens per second, answers under way) of equal parts of a block."""
    width = max(measured.seconds, 1e-9) / bins
    points = []
    for index in range(bins):
        begin, end = index * width, (index + 1) * width
        tokens = sum(tokens_within(sample, begin, end) for sample in measured.samples)
        users = sum(_overlap(sample.start, sample.end, begin, end) for sample in measured.samples)
        points.append((begin + width / 2, tokens / width, users / width))
    return points
