"""Drafters in static shapes, for CUDA graphs: what the runner of a device asks of them, step by step.

The host knows of each slot only how much a drafter may lack at most; what it truly lacks is worked out on the device.
So a call is of one of two kinds. Those that take a `Step` run on the host, once for every step and in this order; they
keep bounds and may launch work that is not recorded. Those that take tensors alone launch the same kernels on the same
addresses whenever shapes and `width` are the same, and can be recorded.

    enter(step)        the device's page table still shows what the step's entries replace
    entered(step)      admissions and page entries have been entered
    catch_up(step)     rows that draft and may lack more than a proposal can read      } steps in
    width(step)        how many pairs or tokens a row's proposal must read at most     } which a row
    propose(...)                                                                       } drafts
    absorb(...)        after acceptance has moved the slots' lengths
    extend(step, ...)  last
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from overdrive.device.attention.reference import Heads, PagedKV
from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout, SamplingState
from overdrive.device.state import SlotState
from overdrive.model.ops import Attention
from overdrive.types import Step


class DescribedRows(Protocol):
    """A step's R rows on the device; all [R] int64. Padding rows have the last slot, which is nobody's, and 0 else.

    slots: all different but for padding. known: tokens fed whose ids are decided. drafts: most drafts wanted. emits: 1
    where the row yields tokens.
    """

    @property
    def slots(self) -> Tensor: ...

    @property
    def known(self) -> Tensor: ...

    @property
    def drafts(self) -> Tensor: ...

    @property
    def emits(self) -> Tensor: ...


class PaddedDrafts(NamedTuple):
    """Where a proposal is written. tokens: [R, K] int64, ids of the target; beyond a row's count any.

    counts: [R] int64, how many the drafter offers, at most the row's `drafts`. sources: [R] int64, who wrote the row's
    drafts: an index into the drafter's `sources`.
    """

    tokens: Tensor
    counts: Tensor
    sources: Tensor


class PaddedDrafter(Protocol):
    """Runs on the stream, in its order; nothing here waits for the device. See the module's docstring for the order.

    sources: names of those who may write a row's drafts. taps: layers of the target, counted by input and ascending,
    whose residual stream `absorb` wants.
    """

    @property
    def sources(self) -> tuple[str, ...]: ...

    @property
    def taps(self) -> tuple[int, ...]: ...

    def enter(self, step: Step) -> None:
        """Pages of slots are about to change."""
        ...

    def entered(self, step: Step) -> None:
        """The device has the step's admissions and pages."""
        ...

    def catch_up(self, step: Step) -> None:
        """Read what no width of a proposal holds, for the rows that draft."""
        ...

    def width(self, step: Step) -> int:
        """One of `widths`, the least that will do for the rows that draft once `catch_up` has run."""
        ...

    @property
    def widths(self) -> tuple[int, ...]:
        """What `width` may return, ascending: the proposals to record."""
        ...

    def propose(self, rows: DescribedRows, drafts: PaddedDrafts, width: int) -> None:
        """Guess what follows the newest token of each row, K = the drafts' columns. Before the step's forward.

        Rows whose `drafts` are 0 read nothing and offer nothing.
        """
        ...

    def absorb(self, rows: DescribedRows, batch: Batch, taps: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Keep what a later proposal will need of a step.

        batch: the target's, padded: of its T tokens those from `offsets[-1]` on are nobody's. taps: [T, n * H].
        tokens: [R, Q] int64, of which the first counts[r] became the newest of the row's slot. counts: [R] int64.
        """
        ...

    def extend(self, step: Step, batch: Batch, taps: Tensor) -> None:
        """The step is absorbed: chunks of prompts are read, and bounds follow the step. Not recorded.

        batch, taps: as `absorb` was given them, rows in the order of the step's.
        """
        ...


class KeepsNothing:
    """The methods of a `PaddedDrafter` that has no state of its own, all but `propose`."""

    taps: tuple[int, ...] = ()
    widths: tuple[int, ...] = (1,)

    def enter(self, step: Step) -> None:
        """Pages hold nothing of this drafter's."""

    def entered(self, step: Step) -> None:
        """Nothing to reset."""

    def catch_up(self, step: Step) -> None:
        """Nothing is ever lacking."""

    def width(self, step: Step) -> int:
        """Nothing is read of a row but what the device's state tells."""
        return 1

    def absorb(self, rows: DescribedRows, batch: Batch, taps: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Nothing to keep."""

    def extend(self, step: Step, batch: Batch, taps: Tensor) -> None:
        """Nothing to read."""


Draw = Callable[[Tensor, Layout, Tensor, Tensor, Tensor], None]
"""draw(logits [R, Vd], layout, drafts [R, K], ids [Vd], out [R]): the target id that each row draws by its own rules,
into `out` of any stride. ids: the target's id of each of the network's. Of the drafts those before the layout's depth
matter. What it draws for rows of NaN, or of slots that are nobody's, is an id all the same."""

Attend = Callable[[PagedKV, Heads, Batch, int, bool], Attention]
"""attend(kv, heads, batch, queries, long_rows): attention over a network's own pages for one pass. Rows have at most
`queries` tokens, and more only where `long_rows`."""


@dataclass(frozen=True, slots=True)
class PaddedRoom:
    """One engine's device side, as far as drafters use it. state and sampling have a slot more than requests can have:
    the last one is that of padding rows."""

    device: torch.device
    state: SlotState
    sampling: SamplingState
    n_pages: int
    draw: Draw
    attend: Attend

    @property
    def slots(self) -> int:
        """Slots that requests can have."""
        return len(self.state.lengths) - 1
