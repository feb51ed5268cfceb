"""What happened in a simulated run, step by step and request by request, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

PROBE = "probe"
"""The rule of a step that tries a K for one step, to learn."""

RECOVERED = 0.03
"""A controller has recovered when it wastes no more than this share of its steps ..."""
SPAN = 25
"""... over so many steps."""


class Run:
    """Filled by the engine, in order. Lists over steps: drafts (K planned; -1 without decode rows), rules (who planned
    it so), decode_rows, tokens (output), seconds, done (share of the work before it), loss (share of it wasted against
    the best plan; 0 where acceptance never flips).

    arrivals, firsts, ends: by request, clock in seconds; nan for what has not happened. lengths: of finished answers.
    """

    def __init__(self) -> None:
        self.drafts: list[int] = []
        self.rules: list[str] = []
        self.decode_rows: list[int] = []
        self.tokens: list[int] = []
        self.seconds: list[float] = []
        self.done: list[float] = []
        self.loss: list[float] = []
        self.arrivals: list[float] = []
        self.firsts: list[float] = []
        self.ends: list[float] = []
        self.lengths: list[int] = []

    def arrive(self, clock: float) -> None:
        """A request has come."""
        self.arrivals.append(clock)
        self.firsts.append(float("nan"))
        self.ends.append(float("nan"))
        self.lengths.append(0)

    def tell(
        self,
        requests: NDArray[np.int64],
        made: NDArray[np.int64],
        useful: NDArray[np.int64],
        output: NDArray[np.int64],
        clock: float,
    ) -> None:
        """Answers have grown from `made` by `useful` tokens, all of them [rows], of `output` in the end."""
        for i in np.flatnonzero((useful > 0) & (made == 0)).tolist():
            self.firsts[requests[i]] = clock
        for i in np.flatnonzero((useful > 0) & (made + useful >= output)).tolist():
            self.ends[requests[i]] = clock
            self.lengths[requests[i]] = int(output[i])

    def step(
        self, drafts: int, rule: str, decode_rows: int, tokens: int, seconds: float, done: float, loss: float
    ) -> None:
        """A step has run."""
        self.drafts.append(drafts)
        self.rules.append(rule)
        self.decode_rows.append(decode_rows)
        self.tokens.append(tokens)
        self.seconds.append(seconds)
        self.done.append(done)
        self.loss.append(loss)

    @property
    def throughput(self) -> float:
        """Output tokens per second in which a step ran."""
        return sum(self.tokens) / sum(self.seconds)

    @property
    def switches(self) -> float:
        """Changes of K per 1,000 steps with decode rows, but for single steps that try another K."""
        drafts = self._planned
        return 1000 * int(np.count_nonzero(np.diff(drafts))) / max(1, len(drafts))

    @property
    def starts(self) -> float:
        """Changes from K = 0 to drafting, per 1,000 steps with decode rows: those a drafter has to catch up for."""
        drafts = self._planned
        return 1000 * int(np.count_nonzero((drafts[:-1] == 0) & (drafts[1:] > 0))) / max(1, len(drafts))

    @property
    def _planned(self) -> NDArray[np.int64]:
        """K of every step with decode rows, but for probes."""
        planned = zip(self.drafts, self.rules, strict=True)
        return np.array([k for k, rule in planned if k >= 0 and rule != PROBE], np.int64)

    @property
    def probes(self) -> float:
        """Steps that try another K, per 1,000 steps with decode rows."""
        return 1000 * self.rules.count(PROBE) / max(1, sum(k >= 0 for k in self.drafts))

    @property
    def shares(self) -> dict[int, float]:
        """Share of the time of steps with decode rows by K."""
        drafts, seconds = np.array(self.drafts), np.array(self.seconds)
        whole = seconds[drafts >= 0].sum()
        return {int(k): float(seconds[drafts == k].sum() / whole) for k in np.unique(drafts[drafts >= 0])}

    @property
    def token_seconds(self) -> NDArray[np.float64]:
        """Time per output token behind the first, of every finished answer of more than one."""
        firsts, ends, lengths = (np.array(values) for values in (self.firsts, self.ends, self.lengths))
        several = lengths > 1
        return (ends - firsts)[several] / (lengths[several] - 1)

    @property
    def first_seconds(self) -> NDArray[np.float64]:
        """From arrival to the first token, of every answer that has one."""
        waits = np.array(self.firsts) - np.array(self.arrivals)
        return waits[~np.isnan(waits)]

    def recoveries(self, flips: Sequence[float]) -> list[float]:
        """After each flip (share of the work), steps until a span of steps wastes little; inf where none does before
        the next flip, or the end."""
        drafts, loss, done = (np.array(values) for values in (self.drafts, self.loss, self.done))
        loss, done = loss[drafts >= 0], done[drafts >= 0]
        bounds = [*np.searchsorted(done, flips).tolist(), len(done)]
        return [_recovery(loss[start:stop]) for start, stop in pairwise(bounds)]


def _recovery(loss: NDArray[np.float64]) -> float:
    """Steps before the first span whose mean loss is small."""
    if len(loss) < SPAN:
        return inf
    means = np.convolve(loss, np.full(SPAN, 1 / SPAN), mode="valid")
    good = np.flatnonzero(means <= RECOVERED)
    return float(good[0]) if len(good) else inf
