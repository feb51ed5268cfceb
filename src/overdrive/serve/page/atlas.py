"""The map of loads: what is chosen at every concurrency and context, by the engine's own policy and its costs.

Knows the engine's facts and newest beliefs. Must never know HTTP.
"""

from __future__ import annotations

from functools import partial

import msgspec

from overdrive.policy.chart import Choice, chart
from overdrive.policy.cost import CostTable
from overdrive.serve.service import off_loop
from overdrive.wire import EngineInfo, PlanStats

SHORTEST = 128  # positions of a request, where the contexts begin


class Map(msgspec.Struct, frozen=True):
    """rows: numbers of requests. contexts: positions of each. cells: [contexts][rows], None where the KV cache is too
    small. weighed: whether costs were weighed; else every step drafts the same, and only `drafts` means anything.
    learnt: whether acceptance was seen, or is what is taken to begin with.
    """

    rows: list[int]
    contexts: list[int]
    cells: list[list[Choice | None]]
    weighed: bool
    learnt: bool


class Atlas:
    """The maps of one engine."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._rows = doubling(1, info.max_rows)
        self._contexts = doubling(min(SHORTEST, info.max_model_len), info.max_model_len)

    async def draw(self, planning: PlanStats) -> Map:
        """The map by what the engine believes: milliseconds of work, in a thread, off everybody's way."""
        return await off_loop(partial(self._draw, planning))

    def _draw(self, planning: PlanStats) -> Map:
        learnt = any(planning.survival)
        cells = self._weighed(planning, learnt) if self._info.costs else self._same()
        limit = self._info.kv_tokens
        fitting = [
            [cell if rows * context <= limit else None for rows, cell in zip(self._rows, line, strict=True)]
            for context, line in zip(self._contexts, cells, strict=True)
        ]
        return Map(self._rows, self._contexts, fitting, bool(self._info.costs), learnt)

    def _weighed(self, planning: PlanStats, learnt: bool) -> list[list[Choice]]:
        stored = {name: value for name, value in self._info.costs.items() if name not in ("origin", "doubt")}
        costs = CostTable.from_dict({**stored, **planning.costs}, stored["key"])
        survival = planning.survival if learnt else []
        return chart(costs, self._info.plans, survival, self._rows, self._contexts)

    def _same(self) -> list[list[Choice]]:
        one = Choice(self._info.drafts, 0.0, 0.0, self._info.drafts, 0.0)
        return [[one for _ in self._rows] for _ in self._contexts]


def doubling(first: int, last: int) -> list[int]:
    """From `first` on, each twice the one before, and `last` at the end."""
    sizes = [first]
    while sizes[-1] * 2 < last:
        sizes.append(sizes[-1] * 2)
    return [*sizes, last] if last > sizes[-1] else sizes
