"""The static tensors of a step: allocated once at the largest extent, seen through views of a shape's size.

CUDA graphs know their tensors by address, so whatever one launch leaves for another, or for the host, stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.shapes import Extent, StepShape
from overdrive.device.cuda.steps import StepRows
from overdrive.device.sampling import Layout, Masks
from overdrive.draft.padded import PaddedDrafts


@dataclass(frozen=True, slots=True)
class Sizes:
    """extent: of steps. pages: columns of the page table. hidden: width of the model. taps: width of a token's taps.

    words: of a grammar mask. forced: `ForcedRuns.shape`.
    """

    extent: Extent
    pages: int
    hidden: int
    taps: int
    words: int
    forced: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StepViews:
    """A step's tensors at its shape: R rows, T tokens, Q = K + 1 logits per row.

    rows: as the host described them. drafts, batch, layout: as `flatten` leaves them. hidden: [R * Q, H] of the wanted
    tokens, final-normed. taps: [T, W]. masks: of steps with grammars. lines: [R * Q + R] int64, filled by one copy, of
    which the index of the masks and legal are views: [R] int64, the most drafts to accept. forced: [R, Q, B, F] int64,
    what is certain behind each position, as `ForcedRuns` has it. drawn: [R * Q] int64. tokens: [R, Q] and counts: [R],
    int64, what was accepted.
    results: [R * Q + 3 R] int64, what the host reads: tokens, counts, and the drafts' counts and sources, one after the
    other; the names above are views of it.
    """

    rows: StepRows
    drafts: PaddedDrafts
    batch: Batch
    layout: Layout
    hidden: Tensor
    taps: Tensor
    masks: Masks
    lines: Tensor
    legal: Tensor
    forced: Tensor
    drawn: Tensor
    tokens: Tensor
    counts: Tensor
    results: Tensor


class StepBuffers:
    """Owns the tensors. described: [4 * R] int64, where the host's description of a step's rows arrives."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
        extent = sizes.extent
        tokens, rows, wanted = extent.tokens, extent.rows, extent.rows * extent.queries

        def integers(count: int, kind: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(count, dtype=kind, device=device)

        self._sizes = sizes
        self.described = integers(4 * rows)
        self._by_token = integers(4 * tokens).view(4, tokens)
        self._offsets, self._none = integers(rows + 1), integers(3 * rows)  # the target sees everything
        self._page_table = integers(rows * sizes.pages, torch.int32)
        self._by_wanted = integers(5 * wanted).view(5, wanted)
        self._drawn, self._drafted = integers(wanted), integers(wanted)
        self._results = integers(wanted + 3 * rows)
        self._mask_bits = integers(wanted * sizes.words, torch.int32).view(wanted, sizes.words)
        self._by_mask = integers(wanted + rows).fill_(-1)
        self._forced = integers(wanted * prod(sizes.forced)).view(wanted, *sizes.forced)
        self._hidden = torch.zeros((wanted, sizes.hidden), dtype=dtype, device=device)
        self._taps = torch.zeros((tokens, sizes.taps), dtype=dtype, device=device)
        self._views: dict[StepShape, StepViews] = {}

    @property
    def sizes(self) -> Sizes:
        """What they are as large as."""
        return self._sizes

    @property
    def results_size(self) -> int:
        """Elements of the longest `StepViews.results`."""
        return self._results.numel()

    def unmask(self) -> None:
        """No position of any shape has a mask."""
        self._by_mask.fill_(-1)

    def of(self, shape: StepShape) -> StepViews:
        """The views of a shape, always the same."""
        views = self._views.get(shape)
        if views is None:
            views = self._views[shape] = self._make(shape)
        return views

    def _make(self, shape: StepShape) -> StepViews:
        t, r, q = shape.tokens, shape.rows, shape.queries
        ids, positions, of_row, writes = (line[:t] for line in self._by_token)
        wanted, *layout = (line[: r * q] for line in self._by_wanted)
        results = self._results[: r * q + 3 * r]
        tokens, counts, offered, sources = results.split_with_sizes((r * q, r, r, r))
        batch = Batch(
            ids=ids,
            positions=positions,
            rows=of_row,
            offsets=self._offsets[: r + 1],
            page_table=self._page_table[: r * self._sizes.pages].view(r, -1),
            starts=self._none[:r],
            gaps=self._none[r : 3 * r].view(r, 2),
            writes=writes,
            wanted=wanted,
        )
        return StepViews(
            rows=StepRows(self.described[: 4 * r].view(4, r)),
            drafts=PaddedDrafts(self._drafted[: r * (q - 1)].view(r, q - 1), offered, sources),
            batch=batch,
            layout=Layout(*layout),
            hidden=self._hidden[: r * q],
            taps=self._taps[:t],
            masks=Masks(self._mask_bits, self._by_mask[: r * q]),
            lines=self._by_mask[: r * q + r],
            legal=self._by_mask[r * q : r * q + r],
            forced=self._forced[: r * q].view(r, q, *self._sizes.forced),
            drawn=self._drawn[: r * q],
            tokens=tokens.view(r, q),
            counts=counts,
            results=results,
        )
