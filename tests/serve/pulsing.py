"""A scripted engine that tells statistics as a real one does, only faster, and reads a live page's events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import msgspec
import numpy as np

from overdrive.policy.cost import CostTable
from overdrive.wire import DraftStats, EngineInfo, PlanStats, Stats
from tests.patience import PATIENCE

from .fakes import INFO, FakeEngine

PLANS = (1, 2, 3)
TOLD_SECONDS, CLOCK_SECONDS = 0.05, 0.5  # between two statistics, really and by the engine's clock


def costs() -> CostTable:
    """Drafts pay for few requests and not for many."""
    tokens = np.array([1, 2, 4, 8, 16])
    return CostTable(
        tokens, [0, 4096], (2e-3 + 1e-3 * tokens)[:, None] + [0, 1e-3], [1, 4], PLANS, [[1e-4 * k] * 2 for k in PLANS]
    )


COSTS = {"doubt": "", **costs().to_dict({"machine": "this"})}
AUTO = msgspec.structs.replace(INFO, speculation="auto", plans=PLANS, costs={"origin": "measured", **COSTS})


class PulsingEngine(FakeEngine):
    """Tells, ten times as fast as its clock says, of steps that draft whenever `busy`."""

    def __init__(self, info: EngineInfo = AUTO) -> None:
        super().__init__(round_seconds=0.01, info=info)
        self.busy = False
        self.speculation = info.speculation
        self._steps = self._beats = 0
        self._next = 0.0

    def tell(self) -> list[Stats]:
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + TOLD_SECONDS
        self._beats += 1
        self._steps += 20 * self.busy
        news = {"speculation": self.speculation, "shifts": self.shifted}
        return [msgspec.structs.replace(self.stats(self._beats, self._steps), **news)]

    def shift(self, speculation: str) -> None:
        super().shift(speculation)
        self.speculation = speculation

    def stats(self, beats: int, steps: int) -> Stats:
        """After so many of either: 2 rows draft 3 tokens in every step; each first is right, and half of the second."""
        counts = {"rounds": 2 * steps, "offered": [2 * steps] * 3}
        judged = {"reached": [2 * steps, 2 * steps, steps], "accepted": [2 * steps, steps, 0]}
        planning = PlanStats(
            rows=2 if steps else 0,
            context=600,
            drafts=3 if steps else 0,
            rule="gear" if steps else "",
            expected_tokens=5.0,
            expected_seconds=0.01,
            runner_up=2,
            runner_up_score=450.0,
            survival=[0.9, 0.5, 0.1] if steps else [0.0, 0.0, 0.0],
            tokens_expected=5.0 * steps,
            tokens_found=5.0 * steps,
            seconds_expected=0.01 * steps,
            seconds_found=0.011 * steps,
            costs=costs().corrected(),
        )
        return Stats(
            clock=beats * CLOCK_SECONDS,
            running=2 * self.busy,
            pages_used=60 * self.busy,
            pages_cached=20,
            pages_total=200,
            steps=steps,
            rounds=2 * steps,
            generated=5 * steps,
            drafts=[DraftStats(source="eagle3", key="greedy", **counts, **judged)],
            plans=[0, 0, 0, steps],
            planning=planning,
            launch_seconds=(0.001 * steps, 0.007 * steps, 0.001 * steps, 0.001 * steps),
            host_seconds=0.001 * steps,
        )


def events(url: str, headers: dict[str, str] | None = None) -> Iterator[tuple[str, dict]]:
    """What a page at `url` is told, as it comes. The connection closes with the iterator."""
    with httpx.stream("GET", f"{url}/live", headers=headers, timeout=PATIENCE) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))
