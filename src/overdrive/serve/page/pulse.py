"""What changed between two of the engine's statistics, as open pages are told it. Pure: knows the messages alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from overdrive.wire import DraftStats, PlanStats, Stats


class Drafted(msgspec.Struct, frozen=True):
    """Drafts of one source in rows of one key; lists are by position in the row, as in `DraftStats`."""

    source: str
    key: str
    rounds: int
    offered: list[int]
    reached: list[int]
    accepted: list[int]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The newest plan, as in `PlanStats`, and how lately plans have come true.

    tokens, seconds: found / expected over the steps between; 0 where nothing was expected.
    """

    rows: int
    context: int
    drafts: int
    rule: str
    expected_tokens: float
    expected_seconds: float
    runner_up: int
    runner_up_score: float
    survival: list[float]
    tokens: float
    seconds: float


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """`speculation` to `pages_total` are of now. The rest happened within the last `seconds`, fields as in `Stats`."""

    seconds: float
    speculation: str
    running: int
    waiting: int
    pages_used: int
    pages_cached: int
    pages_total: int
    steps: int
    rounds: int
    generated: int
    prefilled: int
    preemptions: int
    plans: list[int]
    launch_seconds: list[float]
    host_seconds: float
    drafts: list[Drafted]
    plan: Planned


def pulse(now: Stats, then: Stats) -> Pulse:
    """What `now` adds to `then`, which is older or the same."""
    return Pulse(
        seconds=now.clock - then.clock,
        speculation=now.speculation,
        running=now.running,
        waiting=now.waiting,
        pages_used=now.pages_used,
        pages_cached=now.pages_cached,
        pages_total=now.pages_total,
        steps=now.steps - then.steps,
        rounds=now.rounds - then.rounds,
        generated=now.generated - then.generated,
        prefilled=now.prefilled - then.prefilled,
        preemptions=now.preemptions - then.preemptions,
        plans=_grown(now.plans, then.plans),
        launch_seconds=[a - b for a, b in zip(now.launch_seconds, then.launch_seconds, strict=True)],
        host_seconds=now.host_seconds - then.host_seconds,
        drafts=_drafted(now.drafts, then.drafts),
        plan=_planned(now.planning, then.planning),
    )


def _drafted(now: Sequence[DraftStats], then: Sequence[DraftStats]) -> list[Drafted]:
    """Of sources and keys with new rounds."""
    before = {(one.source, one.key): one for one in then}
    found = []
    for one in now:
        old = before.get((one.source, one.key))
        rounds = one.rounds - (old.rounds if old else 0)
        if rounds:
            lists = (
                _grown(getattr(one, name), getattr(old, name) if old else ())
                for name in ("offered", "reached", "accepted")
            )
            found.append(Drafted(one.source, one.key, rounds, *lists))
    return found


def _planned(now: PlanStats, then: PlanStats) -> Planned:
    return Planned(
        rows=now.rows,
        context=now.context,
        drafts=now.drafts,
        rule=now.rule,
        expected_tokens=now.expected_tokens,
        expected_seconds=now.expected_seconds,
        runner_up=now.runner_up,
        runner_up_score=now.runner_up_score,
        survival=now.survival,
        tokens=_ratio(now.tokens_found - then.tokens_found, now.tokens_expected - then.tokens_expected),
        seconds=_ratio(now.seconds_found - then.seconds_found, now.seconds_expected - then.seconds_expected),
    )


def _ratio(found: float, expected: float) -> float:
    return found / expected if expected > 0 else 0.0


def _grown(now: Sequence[int], then: Sequence[int]) -> list[int]:
    """[len(now)], by how much each grew; `then` may be shorter."""
    return [value - (then[place] if place < len(then) else 0) for place, value in enumerate(now)]
