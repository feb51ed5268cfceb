"""How drafting went, as it is told to people: of one request, and of the engine since its start.

Knows counts and the names of those who draft. Must never know HTTP or the engine.

A round is one row's part of a step that yields tokens: the accepted drafts, and one token of the model's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from overdrive.wire import Stats


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts that one source wrote for a request.

    rounds: those it drafted in. tokens_per_round: what they yielded.
    offered, accepted: drafts by position in the row, position 0 first.
    """

    rounds: int
    tokens_per_round: float
    offered: list[int]
    accepted: list[int]


class DraftReport(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts of a request, over all its answers. sources: who drafted, by name; empty where nobody did.

    rounds: all of them, those without drafts too. tokens_per_round: what they yielded.
    """

    rounds: int
    tokens_per_round: float
    sources: dict[str, SourceReport]


class DraftTally:
    """The rounds of one answer, counted as its tokens come."""

    __slots__ = ("_rounds",)

    def __init__(self) -> None:
        self._rounds: Counter[tuple[int, int, int, int]] = Counter()  # (source, offered, accepted, tokens)

    def add(self, source: int, offered: int, accepted: int, tokens: int) -> None:
        """A step has added `tokens` to the answer, the first `accepted` of them from `offered` drafts by `source`."""
        if tokens:
            self._rounds[source, offered, accepted, tokens] += 1

    @staticmethod
    def report(tallies: Iterable[DraftTally], sources: Sequence[str]) -> DraftReport:
        """What the answers of a request come to together. sources: names by index."""
        together: Counter[tuple[int, int, int, int]] = Counter()
        for tally in tallies:
            together.update(tally._rounds)
        drafted: dict[int, list[tuple[int, int, int, int]]] = {}
        for (source, offered, accepted, tokens), times in together.items():
            if offered:
                drafted.setdefault(source, []).append((times, offered, accepted, tokens))
        return DraftReport(
            rounds=together.total(),
            tokens_per_round=_ratio(sum(key[3] * times for key, times in together.items()), together.total()),
            sources={sources[index]: _source_report(drafted[index]) for index in sorted(drafted)},
        )


def _source_report(rounds: list[tuple[int, int, int, int]]) -> SourceReport:
    """rounds: (how often, offered, accepted, tokens)."""
    count = sum(times for times, *_ in rounds)
    positions = range(max(offered for _, offered, _, _ in rounds))
    return SourceReport(
        rounds=count,
        tokens_per_round=_ratio(sum(times * tokens for times, _, _, tokens in rounds), count),
        offered=[sum(times for times, offered, _, _ in rounds if offered > j) for j in positions],
        accepted=[sum(times for times, _, accepted, _ in rounds if accepted > j) for j in positions],
    )


class KeyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts that one source wrote for rows of one key since the start; lists are by position, 0 first.

    offered: proposed. reached: judged, since all before them were right. accepted: right.
    rate: accepted of reached, null where none was reached.
    """

    rounds: int
    tokens_per_round: float
    offered: list[int]
    reached: list[int]
    accepted: list[int]
    rate: list[float | None]


class EngineDraftReport(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts since the start. sources: by source and key (`acceptance.KEYS`), those that have drafted."""

    rounds: int
    tokens_per_round: float
    sources: dict[str, dict[str, KeyReport]]


def engine_report(stats: Stats) -> EngineDraftReport:
    """The engine's counters, put so that a person can read them."""
    sources: dict[str, dict[str, KeyReport]] = {}
    for drafts in stats.drafts:
        if drafts.rounds:
            sources.setdefault(drafts.source, {})[drafts.key] = KeyReport(
                rounds=drafts.rounds,
                tokens_per_round=_ratio(drafts.rounds + sum(drafts.accepted), drafts.rounds),
                offered=drafts.offered,
                reached=drafts.reached,
                accepted=drafts.accepted,
                rate=[_ratio(a, r) if r else None for a, r in zip(drafts.accepted, drafts.reached, strict=True)],
            )
    return EngineDraftReport(
        rounds=stats.rounds, tokens_per_round=_ratio(stats.generated, stats.rounds), sources=sources
    )


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
