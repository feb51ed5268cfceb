"""Log-probabilities that requests of a step asked for, on their way to the host. Nothing here waits.

Steps in which nobody asks never come here. A step in which somebody does runs without graphs where they are computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.buffers import StepViews
from overdrive.device.cuda.logprobs import logprobs
from overdrive.device.logprobs import Logprobs
from overdrive.device.state import SlotState
from overdrive.types import Step, TopLogprobs

SLICE = 64
"""Prompt positions whose logits exist at once."""


class Scores:
    """What one step's rows will be told: taken on the stream, collected by the host once the step has settled."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}  # row -> alternatives
        self._drawn: tuple[int, Logprobs] | None = None
        self._prompts: dict[int, list[Logprobs]] = {}

    def take(self, step: Step, views: StepViews, logits: Tensor) -> None:
        """Scores of what was drawn at every logit row [R * Q, V], for the rows that asked."""
        self._wanted = {i: row.logprobs for i, row in enumerate(step.rows) if row.logprobs >= 0 and row.emits}
        found = logprobs(logits, views.drawn, max(self._wanted.values()))
        self._drawn = views.tokens.shape[1], _on_host(found)

    def take_prompts(
        self, step: Step, batch: Batch, final: Tensor, state: SlotState, logits: Callable[[Tensor], Tensor]
    ) -> None:
        """Scores of the prompt tokens that the step's known positions predict, from hidden states [T, H].

        logits: the target's head.
        """
        for index, row in enumerate(step.rows):
            # The newest token of a row that emits predicts a token that nobody knows yet.
            start, count = row.upper_len - row.known, row.known - row.emits
            if row.prompt_logprobs < 0 or count < 1:
                continue
            following = state.history[row.slot, start + 1 : start + 1 + count].long()
            places = batch.offsets[index] + torch.arange(count, device=final.device)
            self._prompts[index] = [
                _on_host(
                    logprobs(logits(final[places[at : at + SLICE]]), following[at : at + SLICE], row.prompt_logprobs)
                )
                for at in range(0, count, SLICE)
            ]

    def collect(self, counts: NDArray[np.int64]) -> tuple[dict[int, TopLogprobs], dict[int, TopLogprobs]]:
        """By row: of its `counts[row]` new tokens, and of the prompt. The step must have settled."""
        drawn = {}
        if self._drawn is not None:
            queries, found = self._drawn
            for row, n in self._wanted.items():
                places = slice(row * queries, row * queries + int(counts[row]))
                drawn[row] = _as_arrays([found], places, n)
        prompts = {row: _as_arrays(parts, slice(None), parts[0].top.shape[1]) for row, parts in self._prompts.items()}
        return drawn, prompts


def _on_host(found: Logprobs) -> Logprobs:
    """Copies that are complete when the step has settled."""
    return Logprobs(*(_copy(part) for part in (found.chosen, found.ranks, found.top_ids, found.top)))


def _copy(part: Tensor) -> Tensor:
    if not part.is_cuda:
        return part.clone()
    return torch.empty(part.shape, dtype=part.dtype, pin_memory=True).copy_(part, non_blocking=True)


def _as_arrays(parts: list[Logprobs], places: slice, n: int) -> TopLogprobs:
    def joined(name: str) -> NDArray:
        return np.concatenate([getattr(part, name).numpy()[places] for part in parts])

    return TopLogprobs(joined("chosen"), joined("ranks"), joined("top_ids")[:, :n], joined("top")[:, :n])
