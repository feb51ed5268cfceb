"""What the engine asks of a drafter. Drafts are guesses: a wrong one costs time, never text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Drafts(NamedTuple):
    """tokens: [R, K] int64, 0 at and beyond a row's count. counts: [R] int64, how many the drafter offers."""

    tokens: Tensor
    counts: Tensor


class Drafter(Protocol):
    """Runs on the stream, in its order; nothing here waits for the device or is told tokens by the host.

    There is no release: a slot's next admission resets it.
    """

    def admit(self, slot: int, tokens: Sequence[int]) -> None:
        """`slot` belongs to a new request; `tokens` are known of it so far and stand in the device's history."""
        ...

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """Guess what follows the newest token of each row. Called before the step's forward.

        slots: [R] int64, all different. caps: [R] int64, most drafts wanted, at most `width`, which is K.
        """
        ...

    def absorb(self, slots: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """`tokens[r, :counts[r]]` became the newest tokens of `slots[r]`. [R] int64, [R, K+1] int64, [R] int64."""
        ...
