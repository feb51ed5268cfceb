"""How likely drafts are to be accepted, by position: what a step of given rows would yield. Host-side; numpy only.

A draft counts where it was reached: asked for, with all drafts before it accepted. One that was never reached is
missing, not refused; one that was asked for and not offered yields nothing, as a refused one does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class AcceptanceEstimator:
    """Rounds of the recent past, by source and by greedy or sampled rows, and what sets single requests apart."""

    def __init__(self, sources: Sequence[str], max_drafts: int) -> None:
        """sources: names of the drafter's sources. max_drafts: most drafts of a round."""
        self.sources = tuple(sources)
        self.max_drafts = max_drafts

    def admit(self, slot: int, sampled: bool) -> None:
        """A request has got the slot; what its last holder taught of it is forgotten. sampled: temperature > 0."""
        raise NotImplementedError

    def observe(self, slots: np.ndarray, sources: np.ndarray, asked: np.ndarray, accepted: np.ndarray) -> None:
        """Rounds of one settled step, each array [rows] int64, in the order of its rows.

        asked: drafts reserved for the row, whether or not they were offered; a round that asked for none only says
        that the slot is in use. accepted: how many of them, from the front, were right.
        """
        raise NotImplementedError

    def survival(self, sampled_rows: int, greedy_rows: int) -> np.ndarray:
        """[max_drafts] float64, the share of such rows that accepts the first draft, the first two, ..; never rises.

        Requests of the last observed step stand for the ones to come.
        """
        raise NotImplementedError

    @property
    def calibration(self) -> np.ndarray:
        """[max_drafts] float64, realised less predicted share at each position lately; 0 where none was asked for."""
        raise NotImplementedError
