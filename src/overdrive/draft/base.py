"""What the engine asks of a drafter. Drafts are guesses: a wrong one costs time, never text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.types import PageEntry


class Drafts(NamedTuple):
    """tokens: [R, K] int64, 0 at and beyond a row's count. counts: [R] int64, how many the drafter offers.

    sources: [R] int64, who wrote the row's drafts: an index into the drafter's `sources`.
    """

    tokens: Tensor
    counts: Tensor
    sources: Tensor


class Fed(NamedTuple):
    """A settled forward pass: what it fed and what came of it. All tensors are contiguous.

    slots, known, counts: [R] int64 (all slots differ). tokens: [R, K+1] int64: `tokens[r, :counts[r]]` became the
    newest tokens of `slots[r]`. Of row r's part of the batch the first `known[r] + max(counts[r] - 1, 0)` tokens stand;
    what follows them was refused. taps: [T, n * H] of the batch's tokens, side by side in the order of `Drafter.taps`.
    """

    batch: Batch
    slots: Tensor
    known: Tensor
    tokens: Tensor
    counts: Tensor
    taps: Tensor


class Drafter(Protocol):
    """Runs on the stream, in its order; nothing here waits for the device or is told tokens by the host.

    sources: names of those who may write a row's drafts, one for most drafters. taps: layers of the target, counted by
    input and ascending, whose residual stream `absorb` wants.

    There is no release: a slot's next admission resets it. Slots whose requests are not drafted for cost `absorb`
    alone; what a drafter lacks of them it makes up when it is next asked.
    """

    @property
    def sources(self) -> tuple[str, ...]: ...

    @property
    def taps(self) -> tuple[int, ...]: ...

    def enter(self, entry: PageEntry) -> None:
        """Pages of a slot change. The device's page table still shows what they replace, 0 for nothing."""
        ...

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        """`slot` belongs to a new request; `tokens` are known of it so far and stand in the device's history.

        computed: leading positions whose KV was found in shared pages, which have been entered.
        """
        ...

    def propose(self, slots: Tensor, caps: Tensor, width: int) -> Drafts:
        """Guess what follows the newest token of each row. Called before the step's forward.

        slots: [R] int64, all different. caps: [R] int64, most drafts wanted, at most `width`, which is K.
        """
        ...

    def absorb(self, fed: Fed) -> None:
        """Keep what a later proposal will need of a step. Called after every step, drafted for or not."""
        ...

    def extend(self, slots: Tensor, drafts: int) -> None:
        """Prompt chunks of these slots, [R] int64, were absorbed, and may be read now, in one pass for all of them.

        drafts: K of the step's plan. A prompt can be longer than what `absorb` keeps, and its pages will be shared.
        """
        ...
