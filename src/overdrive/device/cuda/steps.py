"""The bookkeeping of a step in static shapes: its padded batch, what drafts agree with the draws, what becomes known.

Everything is written into tensors that the caller allocated, and nothing waits for the device, so that both functions
can stand in CUDA graphs. Tensors on CUDA are handed to the kernels of `step_kernels`, one launch each.
Must never know plans, requests or what a drafter is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.device.verify import Imposed


class StepRows:
    """A step's rows as the host described them: one int64 tensor [4, R], filled by one copy; the names are its lines.

    slots: padding rows have the last slot of the device state, which no request is given. known: tokens fed whose ids
    are decided. drafts: most drafts to feed. emits: 1 where the row yields tokens. In padding rows these three are 0.
    """

    def __init__(self, packed: Tensor) -> None:
        self.packed = packed
        self.slots, self.known, self.drafts, self.emits = packed


def flatten(state: SlotState, rows: StepRows, drafts: Tensor, n_drafts: Tensor, batch: Batch, layout: Layout) -> None:
    """Fill the padded batch of a step, and what each of its R * Q logit rows is for.

    As `overdrive.device.batch.flatten`, but for padding. T, R and Q are those of the tensors; Q - 1 is at least every
    row's drafts, and T at least the tokens of all rows together. A row feeds its known tokens and then
    min(n_drafts, rows.drafts, Q - 1) drafts; tokens of row r stand at `offsets[r] : offsets[r + 1]`.

        tokens   | row 0 ........ | row 1 .. | padding: id 0, position 0, row R - 1, place 0 |
        wanted   r * Q + j: row r's last known token + j, where the row emits and has j drafts; 0 elsewhere

    drafts: [R, at least Q - 1] int64. n_drafts: [R] int64. batch: all but `starts` and `gaps`, which stay as they are,
    is written; `page_table` may be narrower than the state's. What has no page, or no column in the batch, is written
    into the scratch page. layout: [R * Q] each; depths beyond a row's drafts have positions too, and are never read.
    """
    if batch.ids.is_cuda:
        from overdrive.device.cuda import step_kernels

        step_kernels.flatten(state, rows, drafts, n_drafts, batch, layout)
    else:
        torch_flatten(state, rows, drafts, n_drafts, batch, layout)


def torch_flatten(
    state: SlotState, rows: StepRows, drafts: Tensor, n_drafts: Tensor, batch: Batch, layout: Layout
) -> None:
    """`flatten` in torch."""
    n_rows, queries = len(rows.slots), len(batch.wanted) // len(rows.slots)
    fed = torch.minimum(n_drafts, rows.drafts).clamp(0, queries - 1)
    batch.offsets[0] = 0
    torch.cumsum(rows.known + fed, 0, out=batch.offsets[1:])
    _fill_tokens(state, rows, drafts, batch)
    batch.page_table.copy_(state.page_table[rows.slots, : batch.page_table.shape[1]])

    depth = torch.arange(queries, device=fed.device).expand(n_rows, -1)
    exists = (depth <= fed.unsqueeze(1)) & (rows.emits > 0).unsqueeze(1)  # [R, Q]
    last = (batch.offsets[:-1] + rows.known - 1).unsqueeze(1)
    batch.wanted.copy_(torch.where(exists, last + depth, 0).view(-1))
    layout.rows.copy_(torch.arange(n_rows, device=fed.device).repeat_interleave(queries))
    layout.slots.copy_(rows.slots.repeat_interleave(queries))
    layout.depths.copy_(depth.reshape(-1))
    layout.positions.copy_(((state.computed[rows.slots] + rows.known).unsqueeze(1) + depth).view(-1))


def _fill_tokens(state: SlotState, rows: StepRows, drafts: Tensor, batch: Batch) -> None:
    """ids, positions, rows and writes of a batch whose offsets stand."""
    token = torch.arange(len(batch.ids), device=batch.ids.device)
    row = torch.searchsorted(batch.offsets[1:], token, right=True).clamp(max=len(rows.slots) - 1)
    live = token < batch.offsets[-1]
    within = token - batch.offsets[row]
    slot, ahead = rows.slots[row], within - rows.known[row]  # ahead: index of the draft, negative for known tokens
    position = torch.where(live, state.computed[slot] + within, 0)
    ids = state.history[slot, position.clamp(max=state.history.shape[1] - 1)].long()
    if drafts.shape[1]:
        ids = torch.where(ahead >= 0, drafts[row, ahead.clamp(0, drafts.shape[1] - 1)], ids)
    width = batch.page_table.shape[1]
    column = position // state.page_size
    pages = torch.where(column < width, state.page_table[slot, column.clamp(max=width - 1)].long(), 0)
    batch.ids.copy_(torch.where(live, ids, 0))
    batch.positions.copy_(position)
    batch.rows.copy_(row)
    batch.writes.copy_(torch.where(live, pages * state.page_size + position % state.page_size, 0))


def accept(
    drawn: Tensor,
    rows: StepRows,
    drafts: Tensor,
    n_drafts: Tensor,
    state: SlotState,
    tokens: Tensor,
    counts: Tensor,
    imposed: Imposed | None = None,
) -> None:
    """Accept the longest run of drafts that the draws confirm, and make the accepted tokens known to the state.

    `overdrive.device.verify.agree` and `SlotState.advance` in one. drawn: [R * Q] int64, index r * Q + j for depth j
    of row r; what stands at depths beyond a row's drafts is not read. drafts, n_drafts: as for `flatten`. tokens [R, Q]
    and counts [R], int64, are written: row r's new tokens are `tokens[r, :counts[r]]`, 0 beyond; rows that do not emit
    get count 0. Positions past the history's end are not written.
    """
    if drawn.is_cuda:
        from overdrive.device.cuda import step_kernels

        step_kernels.accept(drawn, rows, drafts, n_drafts, state, tokens, counts, imposed)
    else:
        torch_accept(drawn, rows, drafts, n_drafts, state, tokens, counts, imposed)


def torch_accept(
    drawn: Tensor,
    rows: StepRows,
    drafts: Tensor,
    n_drafts: Tensor,
    state: SlotState,
    tokens: Tensor,
    counts: Tensor,
    imposed: Imposed | None = None,
) -> None:
    """`accept` in torch."""
    queries = tokens.shape[1]
    found = drawn.view(-1, queries)
    depth = torch.arange(queries, device=drawn.device)
    first = state.computed[rows.slots] + rows.known  # [R] position of the first new token
    if imposed is None:
        agreed = found[:, :-1] == drafts[:, : queries - 1]
    else:
        agreed = imposed.accepts(rows.slots.unsqueeze(1), first.unsqueeze(1) + depth[:-1], depth[:-1])
    agreed &= depth[:-1] < torch.minimum(n_drafts, rows.drafts).unsqueeze(1)  # [R, Q - 1]
    accepted = agreed.to(torch.int64).cumprod(dim=1).sum(dim=1)
    counts.copy_(torch.where(rows.emits > 0, accepted + 1, 0))
    new = depth < counts.unsqueeze(1)
    tokens.copy_(torch.where(new, found, 0))
    advance(rows, state, tokens, counts)


def advance(rows: StepRows, state: SlotState, tokens: Tensor, counts: Tensor) -> None:
    """Make tokens that were accepted elsewhere known to the state: the second half of `accept`, in torch everywhere."""
    depth = torch.arange(tokens.shape[1], device=tokens.device)
    _write_history(state, rows.slots, depth < counts.unsqueeze(1), tokens, depth)
    # Padding rows share a slot and add nothing to it.
    state.lengths.index_add_(0, rows.slots, counts)
    state.computed.index_add_(0, rows.slots, rows.known + (counts - 1).clamp(0))


def _write_history(state: SlotState, slots: Tensor, new: Tensor, tokens: Tensor, depth: Tensor) -> None:
    """What is not new goes to the last slot, which is nobody's: a static shape must write everything somewhere."""
    spare, end = len(state.lengths) - 1, state.history.shape[1] - 1
    place = state.lengths[slots].unsqueeze(1) + depth  # [R, Q]
    new = new & (place <= end)
    of_slot = torch.where(new, slots.unsqueeze(1), spare)
    state.history[of_slot, torch.where(new, place, end)] = torch.where(new, tokens, 0).int()
