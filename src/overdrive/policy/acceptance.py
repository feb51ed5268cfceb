"""How often drafts are accepted, by position. Host-side counts; numpy only."""

from __future__ import annotations

import numpy as np


class DraftCounts:
    """Drafts offered and accepted at each draft position since the start.

    Position j counts as offered only where it was *reached*: a draft behind a refused one was never judged, and taking
    it for refused would make K ratchet down.
    """

    def __init__(self, max_drafts: int) -> None:
        self.reached = np.zeros(max_drafts, np.int64)
        self.accepted = np.zeros(max_drafts, np.int64)

    def add(self, offered: int, accepted: int) -> None:
        """One row's step: `offered` drafts, of which the first `accepted` were right."""
        if offered:
            self.reached[: min(offered, accepted + 1)] += 1
            self.accepted[:accepted] += 1
