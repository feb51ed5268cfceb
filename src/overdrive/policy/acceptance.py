"""How often drafts are accepted, by position. Host-side counts; numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

KEYS = ("greedy", "sampled", "greedy_constrained", "sampled_constrained")
"""How a row draws its tokens, by index in `DraftCounts`: much of what a grammar leaves is certain."""


def key_of(sampled: bool, constrained: bool) -> int:
    """Index into KEYS. sampled: temperature > 0. constrained: held to a grammar."""
    return sampled + 2 * constrained


class DraftCounts:
    """Rounds with drafts since the start: by who wrote them, how their rows draw, how many, how many were right.

    sources: names of the drafter's sources. max_drafts: most drafts of a round. A round is one row's part of a step.
    What is read from here is derived from those counts; its second axis is an index into KEYS.
    """

    def __init__(self, sources: Sequence[str], max_drafts: int) -> None:
        self.sources = tuple(sources)
        self.max_drafts = max_drafts
        depths = (max_drafts + 1, max_drafts + 1)  # offered, accepted
        self._seen = np.zeros((len(sources), len(KEYS), *depths), np.int64)

    def add(self, source: int, key: int, offered: int, accepted: int) -> None:
        """One round of a row that draws by KEYS[key]: `offered` drafts, of which the first `accepted` were right.

        Nothing where none were offered.
        """
        if offered:
            self._seen[source, key, offered, accepted] += 1

    @property
    def rounds(self) -> np.ndarray:
        """[sources, keys] int64, rounds in which the source drafted."""
        return self._seen.sum(axis=(2, 3))

    @property
    def offered(self) -> np.ndarray:
        """[sources, keys, max_drafts] int64, drafts proposed at each position."""
        return self._count(lambda offered, accepted: offered)

    @property
    def reached(self) -> np.ndarray:
        """[sources, keys, max_drafts] int64, drafts that were judged.

        A draft behind a refused one never is, and taking it for refused would make K ratchet down.
        """
        return self._count(lambda offered, accepted: np.minimum(offered, accepted + 1))

    @property
    def accepted(self) -> np.ndarray:
        """[sources, keys, max_drafts] int64, drafts that were right."""
        return self._count(lambda offered, accepted: accepted)

    def _count(self, depth: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Rounds by position, each counted at the first `depth(offered, accepted)` ones."""
        most = self.max_drafts
        offered, accepted, position = np.ogrid[: most + 1, : most + 1, :most]
        counted = np.broadcast_to(position < depth(offered, accepted), (most + 1, most + 1, most))
        return np.tensordot(self._seen, counted.astype(np.int64), axes=2)
