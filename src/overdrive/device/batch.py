"""A step as the target's forward pass sees it: flat tokens with their positions and pages.

Built on the device from device lengths; knows nothing of requests, plans or drafters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState


@dataclass(frozen=True, slots=True)
class Batch:
    """Ragged rows, flattened. Token t belongs to row `rows[t]`; row r's tokens are `offsets[r] : offsets[r+1]`.

    Every token attends to positions `starts[r] .. positions[t]` of its own row (inclusive; less with a sliding window),
    those of the row's gap left out. Their keys and values stand in the row's pages: position p in page
    `page_table[r, p // page_size]`, slot `p % page_size`.

        starts[r] = 1, gaps[r] = [16, 300]:      0 | 1 .. 15 | 16 .. 299 | 300 .. positions[t]
                                                     seen                  seen

    ids: [T] int64. positions: [T] int64, consecutive within a row. rows: [T] int64.
    offsets: [R + 1] int64. page_table: [R, W] int32, page 0 is the scratch page, W covers every position in the batch.
    starts: [R] int64, at most the row's first position: 0 for the target, 1 or later for a draft network, whose first
    pair stands at 1.
    gaps: [R, 2] int64, positions `gaps[r, 0] .. gaps[r, 1] - 1` are not seen: a draft network has not read them. A
    gap ends at or before the row's first position and may begin before `starts[r]`; [0, 0] where nothing is missing,
    which is always so for the target. Positions keep their numbers, and a sliding window counts the gap's too.
    Keys and values at positions that are not seen must be finite all the same.
    writes: [T] int64, `page * page_size + position % page_size` of the place that takes the token's key and value.
    wanted: [N] int64, tokens whose logits are wanted, ascending.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor
    offsets: Tensor
    page_table: Tensor
    starts: Tensor
    gaps: Tensor
    writes: Tensor
    wanted: Tensor


def flatten(
    state: SlotState, slots: Tensor, known: Tensor, emits: Tensor, drafts: Tensor, n_drafts: Tensor, upper_len: int
) -> tuple[Batch, Layout]:
    """The batch of a step's rows, and what each of its wanted logits is for.

        a row, fed from position `computed` on:   | known ........ | draft 0 | draft 1 |
        wanted logits, if it emits:                             ^      ^         ^

    slots, known, n_drafts: [R] int64. emits: [R] bool. drafts: [R, K] int64. upper_len bounds every position.
    """
    device = slots.device
    fed = known + n_drafts
    offsets = torch.zeros(len(slots) + 1, dtype=torch.int64, device=device)
    torch.cumsum(fed, 0, out=offsets[1:])
    rows = torch.repeat_interleave(torch.arange(len(slots), device=device), fed)  # [T]
    within = torch.arange(len(rows), device=device) - offsets[rows]
    positions = state.computed[slots][rows] + within
    of_slot, ahead = slots[rows], within - known[rows]  # ahead: index of the draft, negative for known tokens
    ids = state.history[of_slot, positions].long()
    if drafts.shape[1]:
        ids = torch.where(ahead >= 0, drafts[rows, ahead.clamp(0)], ids)
    width = -(-upper_len // state.page_size)
    pages = state.page_table[of_slot, positions // state.page_size].long()
    wanted = ((ahead >= -1) & emits[rows]).nonzero().squeeze(1)
    batch = Batch(
        ids=ids,
        positions=positions,
        rows=rows,
        offsets=offsets,
        page_table=state.page_table[slots, :width],
        starts=torch.zeros_like(slots),
        gaps=slots.new_zeros((len(slots), 2)),
        writes=pages * state.page_size + positions % state.page_size,
        wanted=wanted,
    )
    return batch, Layout(rows[wanted], of_slot[wanted], ahead[wanted] + 1, positions[wanted] + 1)
