"""Drafters for tests of the laws: they guess at random, or know the text and err on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from overdrive.draft.base import Drafts, Fed
from overdrive.types import PageEntry


class RandomDrafter:
    """Proposes random tokens, and a random number of them, from a seed."""

    sources = ("random",)
    taps = ()

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(seed)

    def enter(self, entry: PageEntry) -> None:
        """Nothing to note."""

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """Nothing to reset."""

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        counts = self._random.integers(0, caps.numpy() + 1)
        tokens = self._random.integers(0, self._vocab_size, (len(slots), width))
        return Drafts(torch.from_numpy(tokens), torch.from_numpy(counts), torch.zeros_like(slots))

    def absorb(self, fed: Fed) -> None:
        """Nothing to keep."""

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Nothing to read."""


class ScriptedDrafter:
    """Proposes the text that really follows, each token wrong with probability `errors`.

    texts: by slot, the whole text, prompt first. lengths: [slots] int64, how much of it the device has.
    """

    sources = ("script",)
    taps = ()

    def __init__(
        self, texts: Mapping[int, Sequence[int]], lengths: Tensor, vocab_size: int, errors: float = 0.0, seed: int = 0
    ) -> None:
        self._texts = texts
        self._lengths = lengths
        self._vocab_size = vocab_size
        self._errors = errors
        self._random = np.random.default_rng(seed)

    def enter(self, entry: PageEntry) -> None:
        """Nothing to note."""

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """Nothing to reset."""

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        counts = torch.zeros(len(slots), dtype=torch.int64)
        drafts = Drafts(torch.zeros((len(slots), width), dtype=torch.int64), counts, torch.zeros_like(counts))
        for row, (slot, cap) in enumerate(zip(slots.tolist(), caps.tolist(), strict=True)):
            start = int(self._lengths[slot])
            script = list(self._texts[slot][start : start + cap])
            wrong = self._random.random(len(script)) < self._errors
            guess = [(token + int(bad)) % self._vocab_size for token, bad in zip(script, wrong, strict=True)]
            drafts.tokens[row, : len(guess)] = torch.tensor(guess, dtype=torch.int64)
            drafts.counts[row] = len(guess)
        return drafts

    def absorb(self, fed: Fed) -> None:
        """Nothing to keep."""

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Nothing to read."""
