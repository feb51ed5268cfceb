"""The CPU's bookkeeping of a step is that of plain torch, number for number."""

from __future__ import annotations

import torch

from overdrive.device.cpu.steps import CpuSteps
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.device.steps import TorchSteps
from overdrive.grammar.sheet import blank_sheet

SLOTS, LENGTH, PAGE = 9, 200, 16


def random_state(seed: int) -> SlotState:
    random = torch.Generator().manual_seed(seed)
    state = SlotState(SLOTS, LENGTH, PAGE)
    state.history.random_(0, 1000, generator=random)
    state.page_table.random_(1, 90, generator=random)
    state.lengths.random_(20, 100, generator=random)
    state.computed.copy_(state.lengths - torch.randint(1, 20, (SLOTS,), generator=random))
    return state


def fields(*records: object) -> list[torch.Tensor]:
    return [getattr(record, name) for record in records for name in type(record).__slots__]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def test_a_step_of_any_shape_is_that_of_torch() -> None:
    for seed in range(200):
        random = torch.Generator().manual_seed(seed)
        rows, width = int(torch.randint(1, SLOTS, (), generator=random)), seed % 5
        state, other = random_state(seed), random_state(seed)
        slots = torch.randperm(SLOTS, generator=random)[:rows]
        emits = torch.rand(rows, generator=random) < 0.7
        # A row that emits is fed all it knows; another a chunk, without drafts.
        behind = state.lengths[slots] - state.computed[slots]
        known = torch.where(emits, behind, (behind - 1).clamp(min=1))
        n_drafts = torch.randint(0, width + 1, (rows,), generator=random) * emits
        drafts = torch.randint(0, 3, (rows, width), generator=random)
        given = slots, known, emits, drafts, n_drafts, LENGTH
        batch, layout = CpuSteps().flatten(state, *given)
        expected, expected_layout = TorchSteps().flatten(other, *given)
        assert same(fields(batch, layout), fields(expected, expected_layout))

        sheet = blank_sheet(rows, rows, width + 1, 2, (0, 0))
        sheet.bits[:], sheet.index[:] = seed, torch.randint(-1, rows, sheet.index.shape, generator=random).numpy()
        assert same(fields(CpuSteps().masks(sheet, layout)), fields(TorchSteps().masks(sheet, layout)))

        drawn = torch.randint(0, 3, (len(layout.rows),), generator=random)
        order = torch.randperm(len(drawn), generator=random)
        shuffled = Layout(*(part[order] for part in fields(layout)))
        done = CpuSteps().agree(drawn, shuffled, drafts, n_drafts)
        expected_done = TorchSteps().agree(drawn, shuffled, drafts, n_drafts)
        assert same(fields(done), fields(expected_done))

        CpuSteps().advance(state, slots, known, done.tokens, done.counts)
        TorchSteps().advance(other, slots, known, done.tokens, done.counts)
        ours, theirs = ((s.history, s.lengths, s.computed, s.page_table) for s in (state, other))
        assert same(list(ours), list(theirs))
