"""Random steps in static shapes: states, rows and drafts, padded and with rubbish where nobody may look."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.steps import StepRows
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState

SLOTS, LENGTH, PAGE = 9, 200, 16
RUBBISH = -77


class Padded(NamedTuple):
    """A step of `real` rows and what the functions under test are to write into."""

    state: SlotState
    rows: StepRows
    real: int
    drafts: Tensor
    n_drafts: Tensor
    batch: Batch
    layout: Layout


def random_state(seed: int, device: torch.device | str = "cpu") -> SlotState:
    """One slot more than requests can have, as the CUDA device has it."""
    random = torch.Generator().manual_seed(seed)
    state = SlotState(SLOTS + 1, LENGTH, PAGE, device)
    lengths = torch.randint(20, 100, (SLOTS,), generator=random)
    state.history.copy_(torch.randint(0, 1000, state.history.shape, generator=random))
    state.page_table.copy_(torch.randint(0, 90, state.page_table.shape, generator=random))
    state.lengths[:SLOTS] = lengths.to(device)
    state.computed[:SLOTS] = (lengths - torch.randint(1, 20, (SLOTS,), generator=random)).to(device)
    return state


def blank_batch(rows: int, tokens: int, queries: int, pages: int, device: torch.device | str) -> tuple[Batch, Layout]:
    """Tensors of a shape, with rubbish in them."""

    def some(*shape: int) -> Tensor:
        return torch.full(shape, RUBBISH, dtype=torch.int64, device=device)

    batch = Batch(
        ids=some(tokens),
        positions=some(tokens),
        rows=some(tokens),
        offsets=some(rows + 1),
        page_table=some(rows, pages).int(),
        starts=torch.zeros(rows, dtype=torch.int64, device=device),
        gaps=torch.zeros((rows, 2), dtype=torch.int64, device=device),
        writes=some(tokens),
        wanted=some(rows * queries),
    )
    return batch, Layout(*(some(rows * queries) for _ in range(4)))


def random_step(seed: int, device: torch.device | str = "cpu") -> Padded:
    """Up to 8 rows with up to 4 drafts, among them chunks of prompts, padded by up to 3 rows and 9 tokens."""
    random = torch.Generator().manual_seed(seed)

    def some(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=random)

    state = random_state(seed, device)
    real, width = int(some(1, SLOTS)), seed % 5
    padded = real + int(some(0, 4))
    slots = torch.randperm(SLOTS, generator=random)[:real]
    emits = torch.rand(real, generator=random) < 0.7
    # A row that emits is fed all it knows; another a chunk, without drafts.
    behind = (state.lengths - state.computed).cpu()[slots]
    packed = torch.zeros((4, padded), dtype=torch.int64)
    packed[0] = SLOTS
    packed[:, :real] = torch.stack(
        [
            slots,
            torch.where(emits, behind, (behind - 1).clamp(min=1)),
            some(0, width + 1, real) * emits,
            emits.long(),
        ]
    )
    n_drafts = some(0, width + 3, padded)  # drafters may offer more than a row may feed
    tokens = int((packed[1] + torch.minimum(n_drafts, packed[2])).sum()) + int(some(0, 10))
    batch, layout = blank_batch(padded, tokens, width + 1, state.page_table.shape[1], device)
    drafts = some(0, 3, padded, width)
    return Padded(state, StepRows(packed.to(device)), real, drafts.to(device), n_drafts.to(device), batch, layout)


def tensors(*records: object) -> list[Tensor]:
    """The fields of dataclasses of tensors."""
    return [getattr(record, name) for record in records for name in type(record).__slots__]


def contents(state: SlotState) -> list[Tensor]:
    """Copies of what requests can see of a state: all but the spare slot."""
    return [table[:-1].clone() for table in (state.history, state.lengths, state.computed, state.page_table)]
