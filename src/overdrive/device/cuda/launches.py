"""What a step launches on a CUDA device, as functions over its static tensors: enter, draft, forward, accept.

Each piece that can be a CUDA graph comes with the key under which it is one: whatever changes which kernels run is in
the key, everything else is read from device memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.buffers import StepViews
from overdrive.device.cuda.changes import enter, pack
from overdrive.device.cuda.sampling import CudaSampler
from overdrive.device.cuda.sampling_state import LEVELS, Rules, StaticSamplingState
from overdrive.device.cuda.shapes import StepShape
from overdrive.device.cuda.steps import accept, advance, flatten
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.device.state import SlotState
from overdrive.device.verify import Imposed
from overdrive.draft.forced import ForcedRuns, with_grammar
from overdrive.draft.padded import PaddedDrafter
from overdrive.draft.uploads import upload
from overdrive.model.ops import Attention
from overdrive.model.transformer import Hidden, Transformer
from overdrive.types import Step

Keyed = tuple[Hashable, Callable[[], object]]

Attend = Callable[[Batch, int, bool], Attention]
"""attend(batch, queries, mixed): attention over the target's pages for one pass. Rows have at most `queries` tokens
unless it is mixed."""


@dataclass(frozen=True, slots=True)
class Launches:
    """The model, sampler and drafter of an engine over its slots, of which the last one is nobody's.

    imposed: replaces the comparison of drafts and draws, for measurements; None compares them. ranks: those who run
    every step together. Drafts and verdicts are rank 0's; where this one follows, it has neither drafter nor sampler.
    """

    model: Transformer
    attend: Attend
    state: SlotState
    sampling: StaticSamplingState
    sampler: CudaSampler
    drafter: PaddedDrafter
    forced: ForcedRuns
    imposed: Imposed | None = None
    ranks: Ranks = ALONE

    @property
    def spare_slot(self) -> int:
        """The slot of padding rows."""
        return len(self.state.lengths) - 1

    def enter(self, step: Step) -> None:
        """Give slots the step's admissions and pages."""
        device = self.state.history.device
        self.drafter.enter(step)
        if step.admissions or step.page_entries:
            enter(self.state, pack(step.admissions, step.page_entries, device.type == "cuda").to(device))
        self.sampling.admit_all(step.admissions)
        if step.admissions and self.forced.longest:
            self.forced.forget(upload([[a.slot for a in step.admissions]], device)[0])
        self.drafter.entered(step)

    def recorded(self, shape: StepShape, views: StepViews) -> Iterator[Keyed]:
        """Every piece that a step of this shape may launch."""
        if shape.drafts:
            for width in self.drafter.widths:
                yield self.draft(shape, views, width)
            yield self.write_over(shape, views)
        if self.forced.longest:
            yield self.keep(shape, views)
        yield self.forward(shape, views)
        for rules in LEVELS:
            yield self.accept(shape, views, rules)

    def draft(self, shape: StepShape, views: StepViews, width: int) -> Keyed:
        """The drafts of the rows that want any. width: of `PaddedDrafter.widths`."""
        return ("draft", shape.rows, shape.queries, width), lambda: self.drafter.propose(
            views.rows, views.drafts, width
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of those who may write a row's drafts."""
        return with_grammar(self.drafter.sources)

    def write_over(self, shape: StepShape, views: StepViews) -> Keyed:
        """What grammars make certain, in the place of the drafter's drafts."""
        rows, last = views.rows, len(self.sources) - 1
        return ("write over", shape.rows, shape.queries), lambda: self.forced.write_over(
            rows.slots, rows.drafts, *views.drafts, source=last
        )

    def keep(self, shape: StepShape, views: StepViews) -> Keyed:
        """What will be certain of the next tokens, now that the newest is known."""
        return ("keep", shape.rows, shape.queries), lambda: self.forced.keep(
            views.rows.slots, views.forced, views.tokens, views.counts
        )

    def forward(self, shape: StepShape, views: StepViews) -> Keyed:
        """The target's pass over known tokens and drafts, up to the hidden states whose logits are wanted."""
        return ("forward", shape), lambda: self.run_forward(shape, views)

    def run_forward(self, shape: StepShape, views: StepViews) -> Hidden:
        """`forward`, as it is written."""
        if shape.drafts:  # here, since how often proposals are recorded is each rank's drafter's matter
            self.ranks.share(views.drafts.tokens, views.drafts.counts)
        flatten(self.state, views.rows, views.drafts.tokens, views.drafts.counts, views.batch, views.layout)
        attention = self.attend(views.batch, shape.queries, shape.mixed)
        hidden = self.model.forward(views.batch, attention, self.drafter.taps)
        torch.index_select(hidden.final, 0, views.batch.wanted, out=views.hidden)
        views.taps.copy_(hidden.taps)
        return hidden

    def accept(self, shape: StepShape, views: StepViews, rules: Rules) -> Keyed:
        """Logits, draws, the drafts that agree, and what all sides keep of the step."""
        return ("accept", shape, rules, self.sampling.version), lambda: self.run_accept(views, rules)

    def run_accept(self, views: StepViews, rules: Rules) -> Tensor:
        """`accept`, as it is written. Returns the logits, [R * Q, V]."""
        drafts, decided = views.drafts, (views.tokens, views.counts)
        logits = self.model.logits(views.hidden)
        if self.ranks.rank:
            self.ranks.share(*decided)
            advance(views.rows, self.state, *decided)
        else:
            masks = views.masks if rules == "full" else None
            self.sampler.draw(logits, views.layout, drafts.tokens, self.sampling, rules, out=views.drawn, masks=masks)
            accept(views.drawn, views.rows, drafts.tokens, drafts.counts, self.state, *decided, self.imposed)
            self.ranks.share(*decided)
        if rules == "full":
            self.sampling.absorb(views.rows.slots, *decided)
        self.drafter.absorb(views.rows, views.batch, views.taps, *decided)
        return logits
