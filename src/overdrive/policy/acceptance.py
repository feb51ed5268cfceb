"""How often drafts are accepted, by position. Host-side counts; numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class DraftCounts:
    """Drafts judged and accepted since the start, by who wrote them, for greedy and sampled rows, by draft position.

    sources: names of the drafter's sources. reached, accepted: [sources, 2, max_drafts] int64, index 1 of the second
    axis for sampled rows. rounds: [sources, 2] int64, row steps with drafts.

    Position j counts only where it was *reached*: a draft behind a refused one was never judged, and taking it for
    refused would make K ratchet down.
    """

    def __init__(self, sources: Sequence[str], max_drafts: int) -> None:
        self.sources = tuple(sources)
        self.reached = np.zeros((len(sources), 2, max_drafts), np.int64)
        self.accepted = np.zeros((len(sources), 2, max_drafts), np.int64)
        self.rounds = np.zeros((len(sources), 2), np.int64)

    def add(self, source: int, sampled: bool, offered: int, accepted: int) -> None:
        """One row's step: `offered` drafts, of which the first `accepted` were right."""
        if offered:
            self.rounds[source, int(sampled)] += 1
            self.reached[source, int(sampled), : min(offered, accepted + 1)] += 1
            self.accepted[source, int(sampled), :accepted] += 1
