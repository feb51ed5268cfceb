"""What a step costs: seconds by its tokens, its context and its drafts, as measured on this machine. numpy only.

Knows no device: whoever measures gives it grids, and refuses a stored one of another machine by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class CostTable:
    """Two measured grids and the slow corrections learnt while serving.

    step_tokens: [n] rising, tokens fed. contexts: [c] rising, positions that all rows together attend to.
    step_seconds: [n, c], everything but drafting: forward, sampling, accept, absorb.
    draft_rows: [r] rising. draft_ks: [k] rising, from 1. draft_seconds: [k, r], drafting K tokens for each row.
    row_sizes: rising, numbers of rows that steps without prompts are padded to, each row with all K drafts. Empty for a
    device that feeds what rows have and no more.
    padded_to: token counts up to it run as the next measured one (graphs); larger ones, and rows, are interpolated. 0
    for a device that runs every size as it is.
    """

    def __init__(
        self,
        step_tokens: np.ndarray,
        contexts: np.ndarray,
        step_seconds: np.ndarray,
        draft_rows: np.ndarray,
        draft_ks: np.ndarray,
        draft_seconds: np.ndarray,
        row_sizes: Sequence[int] = (),
        padded_to: int = 0,
    ) -> None:
        """Raises ValueError for grids that do not fit together."""

    def step(self, tokens: np.ndarray | int, context: int) -> np.ndarray:
        """Seconds of steps that feed so many tokens, of the shape of `tokens`. Never falls with tokens or context."""
        raise NotImplementedError

    def draft(self, ks: np.ndarray | int, rows: int) -> np.ndarray:
        """Seconds that drafting takes, of the shape of `ks`; 0 for K = 0. Never falls with K or rows."""
        raise NotImplementedError

    def correct(self, tokens: int, context: int, seconds: float) -> None:
        """A step without prompts took so long: its cell is corrected slowly, its neighbours and the rest less."""
        raise NotImplementedError

    def correct_draft(self, k: int, rows: int, seconds: float) -> None:
        """Drafting without anything to catch up took so long."""
        raise NotImplementedError

    def to_dict(self, key: dict[str, Any]) -> dict[str, Any]:
        """As JSON can hold it, without corrections. key: model, device, versions, threads: what costs depend on."""
        raise NotImplementedError

    @staticmethod
    def from_dict(stored: dict[str, Any], key: dict[str, Any]) -> CostTable:
        """The table that was stored. Raises OverdriveError, naming what differs, where it was measured elsewhere."""
        raise NotImplementedError
