"""The padded bookkeeping of a step is that of the ragged one: where rows are real, number for number."""

from __future__ import annotations

import torch

from overdrive.device.batch import flatten as ragged
from overdrive.device.cuda.changes import enter, pack
from overdrive.device.cuda.steps import StepRows, accept, flatten
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.device.verify import Imposed, agree
from overdrive.types import OVERSHOOT, Admission, PageEntry, SamplingParams
from tests.device.cuda.schedules import LENGTH, PAGE, SLOTS, Padded, blank_batch, contents, random_state, random_step

SEEDS = range(150)


def flattened(seed: int) -> Padded:
    step = random_step(seed)
    flatten(step.state, step.rows, step.drafts, step.n_drafts, step.batch, step.layout)
    return step


def of_real_rows(step: Padded) -> tuple[torch.Tensor, ...]:
    """slots, known, emits, drafts, n_drafts of the rows that are not padding."""
    slots, known, caps, emits = step.rows.packed[:, : step.real]
    fed = torch.minimum(caps, step.n_drafts[: step.real])
    return slots, known, emits > 0, step.drafts[: step.real], fed


def test_the_padded_batch_holds_the_ragged_one() -> None:
    for seed in SEEDS:
        step = flattened(seed)
        expected, layout = ragged(step.state, *of_real_rows(step), LENGTH + OVERSHOOT)
        tokens = len(expected.ids)
        for name in ("ids", "positions", "rows", "writes"):
            assert torch.equal(getattr(step.batch, name)[:tokens], getattr(expected, name)), name
        assert torch.equal(step.batch.offsets[: step.real + 1], expected.offsets)
        assert torch.equal(step.batch.page_table[: step.real], expected.page_table)
        # The ragged logits are those of the uniform ones that exist, in the same order.
        at = layout.rows * (step.drafts.shape[1] + 1) + layout.depths
        assert torch.equal(step.batch.wanted[at], expected.wanted)
        for name in ("rows", "slots", "depths", "positions"):
            assert torch.equal(getattr(step.layout, name)[at], getattr(layout, name)), name


def test_padding_is_of_no_row_and_goes_to_the_scratch_page() -> None:
    for seed in SEEDS:
        step = flattened(seed)
        batch, end = step.batch, int(step.batch.offsets[-1])
        assert (batch.offsets[step.real :] == end).all()
        assert (batch.rows[end:] == len(step.rows.slots) - 1).all()
        for field in (batch.ids, batch.positions, batch.writes):
            assert (field[end:] == 0).all()
        queries = step.drafts.shape[1] + 1
        _, _, emits, _, fed = of_real_rows(step)
        exists = torch.zeros((len(step.rows.slots), queries), dtype=torch.bool)
        exists[: step.real] = emits.unsqueeze(1) & (torch.arange(queries) <= fed.unsqueeze(1))
        assert (batch.wanted[~exists.view(-1)] == 0).all()
        assert (step.layout.slots.view(-1, queries)[step.real :] == SLOTS).all()


def test_places_without_a_page_are_in_the_scratch_page() -> None:
    state = random_state(0)
    state.page_table.fill_(5)
    state.page_table[0, 2] = 0
    state.computed[:2] = torch.tensor([2 * PAGE + 3, 4 * PAGE - 1])
    rows = StepRows(torch.tensor([[0, 1], [1, 3], [0, 0], [1, 1]]))
    batch, layout = blank_batch(2, 4, 1, pages=4, device="cpu")  # of position 4 * PAGE the table has no column
    drafts, n_drafts = torch.zeros((2, 0), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    flatten(state, rows, drafts, n_drafts, batch, layout)
    assert batch.writes.tolist() == [3, 5 * PAGE + PAGE - 1, 0, 1]


def test_accepting_is_agreement_and_advance() -> None:
    for seed in SEEDS:
        step = flattened(seed)
        queries = step.drafts.shape[1] + 1
        random = torch.Generator().manual_seed(seed)
        drawn = torch.randint(0, 3, (len(step.layout.rows),), generator=random)
        slots, known, emits, drafts, fed = of_real_rows(step)
        exists = (torch.arange(queries) <= fed.unsqueeze(1)) & emits.unsqueeze(1)
        at = torch.zeros((len(step.rows.slots), queries), dtype=torch.bool)
        at[: step.real] = exists
        real = Layout(*(part[at.view(-1)] for part in (step.layout.rows, step.layout.slots, step.layout.depths, drawn)))
        for imposed in (None, Imposed(torch.tensor([0.8, 0.6, 0.5, 0.5]), torch.arange(SLOTS + 1) * 2**40 - seed)):
            positions = step.layout.positions[at.view(-1)]
            layout = Layout(real.rows, real.slots, real.depths, positions)
            expected = agree(drawn[at.view(-1)], layout, drafts, fed, imposed)
            state, other = random_state(seed), random_state(seed)
            other.advance(slots, known, expected.tokens, expected.counts)
            tokens, counts = torch.full((len(at), queries), -1), torch.full((len(at),), -1)
            accept(drawn, step.rows, step.drafts, step.n_drafts, state, tokens, counts, imposed)
            assert torch.equal(tokens[: step.real], expected.tokens)
            assert torch.equal(counts[: step.real], expected.counts)
            assert not counts[step.real :].any()
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(contents(state), contents(other), strict=True))


def test_the_history_ends_where_it_ends() -> None:
    state = random_state(1)
    end = state.history.shape[1]
    state.lengths[3], state.computed[3] = end - 2, end - 3
    before = contents(state)
    rows = StepRows(torch.tensor([[3, SLOTS], [1, 0], [3, 0], [1, 0]]))
    tokens, counts = torch.zeros((2, 4), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    drafts = torch.tensor([[5, 6, 7], [0, 0, 0]])
    accept(torch.tensor([5, 6, 7, 8, 0, 0, 0, 0]), rows, drafts, torch.tensor([3, 0]), state, tokens, counts)
    assert counts.tolist() == [4, 0]
    before[0][3, end - 2 :] = torch.tensor([5, 6])
    assert torch.equal(contents(state)[0], before[0])


def test_imposed_acceptance_has_its_rates_whatever_drafts_hold() -> None:
    rates, n = torch.tensor([0.75, 0.5, 1.0, 0.0]), 4000
    imposed = Imposed(rates, torch.randint(-(2**62), 2**62, (n,), generator=torch.Generator().manual_seed(0)))
    index = torch.arange(n)
    accepts = torch.stack([imposed.accepts(index, index + 7 + depth, index * 0 + depth) for depth in range(4)])
    shares = accepts.double().mean(dim=1)
    assert (shares[:2] - rates[:2]).abs().max() < 0.03  # four standard deviations
    assert shares[2:].tolist() == [1.0, 0.0]
    together = (accepts[0] & accepts[1]).double().mean()
    assert abs(together - 0.375) < 0.03  # positions decide by themselves


def test_packed_changes_are_the_single_ones() -> None:
    params = SamplingParams(max_tokens=1)
    for seed in range(40):
        random = torch.Generator().manual_seed(seed)

        def some(low: int, high: int, count: int, random: torch.Generator = random) -> tuple[int, ...]:
            return tuple(torch.randint(low, high, (count,), generator=random).tolist())

        state, other = random_state(seed), random_state(seed)
        slots = torch.randperm(SLOTS, generator=random).tolist()
        admissions = [Admission("r", slot, some(0, 99, 5 + slot), 5, slot % 3, params) for slot in slots[: seed % 4]]
        entries = [PageEntry(slot, *some(0, 9, 1), some(1, 90, 3), slot % 2 == 0) for slot in some(0, SLOTS, seed % 7)]
        enter(state, pack(admissions, entries))
        single(other, admissions, entries)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(contents(state), contents(other), strict=True))


def single(state: SlotState, admissions: list[Admission], entries: list[PageEntry]) -> None:
    for admission in admissions:
        state.admit(admission)
    for entry in sorted(entries, key=lambda entry: not entry.shared):
        state.enter(entry)
