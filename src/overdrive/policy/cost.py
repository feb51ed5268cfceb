"""What a step costs: seconds by its tokens, its context and its drafts, as measured on this machine. numpy only.

Knows no device: whoever measures gives it grids, and a stored one of another machine is refused by its key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from overdrive.errors import OverdriveError
from overdrive.policy.decoding import DecodeCosts
from overdrive.policy.surface import Surface

MASK_RATE = 1 / 64
BETWEEN_RATE = 1 / 16
"""Shares of a deviation of the host's time, for masks and between two steps, which follows the load, that one step
corrects."""


class CostTable:
    """What was measured, and the slow corrections learnt while serving.

    step_tokens: [n] rising, tokens fed. contexts: [c] rising, positions that all rows together attend to.
    step_seconds: [n, c], everything but drafting: forward, sampling, accept, absorb.
    draft_rows: [r] rising. draft_ks: [k] rising, from 1. draft_seconds: [k, r], drafting K tokens for each row.
    row_sizes: by K, rising, numbers of rows that steps without prompts are padded to, each row with all K drafts. Empty
    for a device that feeds what rows have and no more.
    padded_to: token counts up to it run as the next measured one (graphs); larger ones, and rows, are interpolated. 0
    for a device that runs every size as it is.
    mask_seconds: of host time for one grammar mask, which a constrained row needs for its own token and for each of its
    drafts; 0 until one has been timed. overlapped: masks are built while the step runs, not when it is done.
    decode: of steps without prompts by K, rows and positions a row, where their tokens alone do not tell; or as it is
    stored. Prompts beside them add then what their tokens add by the grids.
    """

    def __init__(
        self,
        step_tokens: Sequence[float],
        contexts: Sequence[float],
        step_seconds: np.ndarray,
        draft_rows: Sequence[float],
        draft_ks: Sequence[float],
        draft_seconds: np.ndarray,
        row_sizes: Mapping[int, Sequence[int]] | None = None,
        padded_to: int = 0,
        mask_seconds: float = 0.0,
        overlapped: bool = True,
        decode: DecodeCosts | Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ValueError for grids that do not fit together."""
        self.steps = Surface(step_tokens, contexts, step_seconds)
        self.decode = DecodeCosts.from_dict(decode) if isinstance(decode, Mapping) else decode
        self.mask_seconds = mask_seconds
        self.overlapped = overlapped
        self.between = 0.0  # seconds of host time that lately came on top of every step, whatever it fed
        self._mask = mask_seconds
        if len(draft_ks) and draft_ks[0] < 1:
            raise ValueError("drafting nothing costs nothing: the drafts of a cost table begin at 1")
        by_k = np.asarray(draft_seconds, np.float64)
        none = np.zeros((1, len(draft_rows)))
        self.drafts = Surface([0, *draft_ks], draft_rows, np.concatenate([none, by_k]) if by_k.size else none)
        self._drafting: dict[tuple[int, int], float] = {}  # by K and rows, until corrected: asked for in every step
        self.row_sizes = {int(k): tuple(sizes) for k, sizes in (row_sizes or {}).items()}
        self.padded_to = padded_to
        sizes = self.steps.first
        # A size on the way to the next measured one costs what that one costs: monotone also where padding ends.
        self._last_padded = sizes[min(bisect_left(sizes, padded_to), len(sizes) - 1)] if padded_to else 0

    def fed(self, rows: int, k: int, asked: int, prefill: int) -> int:
        """Tokens that a step runs with: `rows` with at most k drafts each, `asked` in all, beside prompts.

        prefill: known tokens of prompts; rows of such steps are not padded.
        """
        if not self.row_sizes or prefill:
            return rows + asked + prefill
        return self._padded_rows(k, rows) * (1 + k)

    def step(self, tokens: int, context: int) -> float:
        """Seconds of a step that feeds so many tokens, drafting left out. Never falls with tokens or context."""
        if tokens <= self._last_padded:
            return self.steps.at(self.steps.first[bisect_left(self.steps.first, tokens)], context)
        return self.steps.at(tokens, context)

    def plain(self, rows: int, k: int, asked: int, context: int) -> float:
        """Seconds of a step without prompts, drafting left out: `rows` with at most k drafts each, `asked` in all."""
        if self.decode is not None and self.decode.knows(k):
            return self.decode.rest(k, self._padded_rows(k, rows), context / max(rows, 1))
        return self.step(self.fed(rows, k, asked, 0), context)

    def mixed(self, rows: int, k: int, asked: int, context: int, prefill: int) -> float:
        """The same beside so many known tokens of prompts."""
        plain = self.plain(rows, k, asked, context) if rows else 0.0
        if not prefill:
            return plain
        whole = self.step(self.fed(rows, k, asked, prefill), context)
        if not rows or self.decode is None or not self.decode.knows(k):
            return whole
        return plain + max(0.0, whole - self.step(self.fed(rows, k, asked, 0), context))

    def draft(self, k: int, rows: int, context: int = 0) -> float:
        """Seconds that drafting takes, 0 for K = 0. Never falls with rows, nor with K unless each has its own costs.

        context: positions of those rows together, which counts where it was measured.
        """
        if not k:
            return 0.0
        if self.decode is not None and self.decode.knows(k):
            return self.decode.drafting(k, self._padded_rows(k, rows), context / max(rows, 1))
        found = self._drafting.get((k, rows))
        if found is None:
            found = self._drafting[k, rows] = self.drafts.at(k, self._padded_rows(k, rows))
        return found

    def catch_up(self, tokens: int) -> float:
        """Seconds to catch up on so many missed tokens, all rows together: a guess, as drafting grows with rows."""
        if not tokens:
            return 0.0
        few, many = self.drafts.second[0], self.drafts.second[-1]
        if many > few:
            return tokens * (self.drafts.at(1, many) - self.drafts.at(1, few)) / (many - few)
        return tokens * self.drafts.at(1, few) / max(few, 1.0)

    def waiting(self, masks: int, step: float) -> float:
        """Seconds that a step of `step` seconds waits for so many masks, built while it runs or behind it."""
        return max(0.0, masks * self._mask - (step if self.overlapped else 0.0))

    def correct(self, rows: int, k: int, asked: int, context: int, seconds: float, steps: int = 1) -> None:
        """So many steps without prompts took so long each, drafting left out: what is nearest is corrected slowly, its
        neighbours and the rest less."""
        expected = self.plain(rows, k, asked, context)
        if not (0 < seconds < inf and expected > 0):
            return
        ratio = seconds / expected
        if self.decode is not None and self.decode.knows(k):
            self.decode.correct_rest(k, self._padded_rows(k, rows), context / rows, ratio, steps)
            self.steps.share(ratio, steps)
        else:
            self.steps.correct(self.fed(rows, k, asked, 0), context, ratio, steps)

    def correct_draft(self, k: int, rows: int, context: int, seconds: float, steps: int = 1) -> None:
        """Drafting without anything to catch up took so long, in so many steps each."""
        expected = self.draft(k, rows, context)
        if not (0 < seconds < inf and expected > 0):
            return
        ratio = seconds / expected
        if self.decode is not None and self.decode.knows(k):
            self.decode.correct_drafting(k, self._padded_rows(k, rows), context / rows, ratio, steps)
            self.drafts.share(ratio, steps)
        else:
            self.drafts.correct(k, self._padded_rows(k, rows), ratio, steps)
        self._drafting.clear()

    def correct_between(self, seconds: float) -> None:
        """The host took so long between two steps."""
        self.between += BETWEEN_RATE * (seconds - self.between)

    def correct_masks(self, masks: int, seconds: float) -> None:
        """Building so many masks took so long."""
        if masks and seconds > 0:
            found = seconds / masks
            self._mask += MASK_RATE * (found - self._mask) if self._mask else found

    def as_run(self, row_sizes: Mapping[int, Sequence[int]], overlapped: bool) -> CostTable:
        """The same costs, uncorrected, where steps are padded and overlapped so."""
        rows = {str(k): list(sizes) for k, sizes in row_sizes.items()}
        return CostTable.from_dict(self.to_dict({}) | {"row_sizes": rows, "overlapped": overlapped}, {})

    def to_dict(self, key: dict[str, Any]) -> dict[str, Any]:
        """As JSON can hold it, without corrections. key: model, device, versions, threads: what costs depend on."""
        return {
            "key": dict(key),
            "step_tokens": self.steps.first,
            "contexts": self.steps.second,
            "step_seconds": self.steps.measured.tolist(),
            "draft_rows": self.drafts.second,
            "draft_ks": self.drafts.first[1:],
            "draft_seconds": self.drafts.measured[1:].tolist(),
            "row_sizes": {str(k): list(sizes) for k, sizes in self.row_sizes.items()},
            "padded_to": self.padded_to,
            "mask_seconds": self.mask_seconds,
            "overlapped": self.overlapped,
            "decode": self.decode and self.decode.to_dict(),
        }

    def corrected(self) -> dict[str, Any]:
        """The seconds of `to_dict` as they are corrected by now. What the host adds to every step is in
        `step_seconds`."""
        steps, drafts = self.steps.corrected + self.between, self.drafts.corrected[1:]
        found: dict[str, Any] = {"step_seconds": steps.tolist(), "draft_seconds": drafts.tolist()}
        return found | ({"decode": self.decode.to_dict(corrected=True)} if self.decode else {})

    @staticmethod
    def from_dict(stored: dict[str, Any], key: dict[str, Any]) -> CostTable:
        """The table that was stored. Raises OverdriveError, naming what differs, where it was measured elsewhere."""
        found = stored.get("key")
        if not isinstance(found, dict):
            raise OverdriveError("the stored cost table does not say where it was measured")
        for name in sorted({*found, *key}):
            if found.get(name) != key.get(name):
                raise OverdriveError(
                    f"the stored cost table was measured elsewhere: its {name} is {found.get(name)!r}, "
                    f"here it is {key.get(name)!r}"
                )
        try:
            return CostTable(**{name: value for name, value in stored.items() if name != "key"})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OverdriveError(f"the stored cost table is damaged: {error}") from None

    def _padded_rows(self, k: int, rows: int) -> int:
        sizes = self.row_sizes.get(k, ())
        index = bisect_left(sizes, rows)
        return sizes[index] if index < len(sizes) else rows
