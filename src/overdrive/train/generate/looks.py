"""What the host sees of the slots: copies that are made behind a stride of steps and read while the next one runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.train.generate.decode import Slots


@dataclass(frozen=True, slots=True)
class Look:
    """The slots as they are after stride `stride`. Valid until the second `Looks.take` after its own."""

    stride: int
    alive: Tensor
    counts: Tensor
    answers: Tensor
    ready: torch.cuda.Event | None

    def wait(self) -> None:
        """Until the copies are there."""
        if self.ready is not None:
            self.ready.synchronize()


class Looks:
    """Two sets of host copies, used in turn: one is read while the other is written."""

    def __init__(self, slots: Slots) -> None:
        self._watched = (slots.alive, slots.counts, slots.answers)
        self._cuda = slots.ids.is_cuda
        self._copies = [
            [torch.empty_like(x, device="cpu", pin_memory=self._cuda) for x in self._watched] for _ in range(2)
        ]
        self._stride = -1

    @property
    def next_stride(self) -> int:
        """The number of the stride that the next look is behind."""
        return self._stride + 1

    def take(self) -> Look:
        """Queue a copy behind what runs; does not wait."""
        self._stride += 1
        copies = self._copies[self._stride % 2]
        for copy, x in zip(copies, self._watched, strict=True):
            copy.copy_(x, non_blocking=True)
        ready = torch.cuda.Event() if self._cuda else None
        if ready is not None:
            ready.record()
        alive, counts, answers = copies
        return Look(self._stride, alive, counts, answers, ready)
