"""How often drafts are accepted, by position. Host-side counts; numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

KEYS = ("greedy", "sampled")
"""How a row draws its tokens, by index in `DraftCounts`."""


class DraftCounts:
    """Rounds with drafts since the start: by who wrote them, in greedy or sampled rows, how many, how many were right.

    sources: names of the drafter's sources. max_drafts: most drafts of a round. A round is one row's part of a step.
    What is read from here is derived from those counts; its second axis is an index into KEYS.
    """

    def __init__(self, sources: Sequence[str], max_drafts: int) -> None:
        self.sources = tuple(sources)
        self.max_drafts = max_drafts
        self._seen = np.zeros((len(sources), 2, max_drafts + 1, max_drafts + 1), np.int64)  # [.., offered, accepted]

    def add(self, source: int, sampled: bool, offered: int, accepted: int) -> None:
        """One round: `offered` drafts, of which the first `accepted` were right. Nothing where none were offered."""
        if offered:
            self._seen[source, int(sampled), offered, accepted] += 1

    @property
    def rounds(self) -> np.ndarray:
        """[sources, 2] int64, rounds in which the source drafted."""
        return self._seen.sum(axis=(2, 3))

    @property
    def offered(self) -> np.ndarray:
        """[sources, 2, max_drafts] int64, drafts proposed at each position."""
        return self._count(lambda offered, accepted: offered)

    @property
    def reached(self) -> np.ndarray:
        """[sources, 2, max_drafts] int64, drafts that were judged.

        A draft behind a refused one never is, and taking it for refused would make K ratchet down.
        """
        return self._count(lambda offered, accepted: np.minimum(offered, accepted + 1))

    @property
    def accepted(self) -> np.ndarray:
        """[sources, 2, max_drafts] int64, drafts that were right."""
        return self._count(lambda offered, accepted: accepted)

    def _count(self, depth: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Rounds by position, each counted at the first `depth(offered, accepted)` ones."""
        most = self.max_drafts
        offered, accepted, position = np.ogrid[: most + 1, : most + 1, :most]
        counted = np.broadcast_to(position < depth(offered, accepted), (most + 1, most + 1, most))
        return np.tensordot(self._seen, counted.astype(np.int64), axes=2)
