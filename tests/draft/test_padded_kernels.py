"""The kernels of padded drafters write what their forms in torch write: in Triton's interpreter, and on CUDA."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.steps import StepRows
from overdrive.device.state import SlotState
from overdrive.draft import copies
from overdrive.draft.eagle3 import steps
from overdrive.draft.eagle3.slots import HeadSlots
from overdrive.draft.padded import PaddedDrafts

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

pytest.importorskip("triton")

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")),
    pytest.param("cuda", marks=pytest.mark.cuda),
]


@pytest.fixture(autouse=True)
def loop_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 interprets a loop's bound as int(array of one), which NumPy 2.5 refuses."""
    if not INTERPRETED:
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@dataclass
class World:
    """A random moment of a few slots."""

    state: SlotState
    head: HeadSlots
    rows: StepRows
    drafts: PaddedDrafts


def world(seed: int, device: str, slots: int = 5, size: int = 4, width: int = 24, window: int = 16) -> World:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def reals(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    state = SlotState(slots + 1, 120, size)
    columns = state.page_table.shape[1]
    n_pages = 1 + slots * columns
    state.history.copy_(torch.randint(0, 4, state.history.shape, generator=generator))
    state.page_table[:-1] = 1 + torch.randperm(slots * columns, generator=generator).view(slots, columns)
    head = HeadSlots.allocate(state, window, n_pages, width, rng.random() < 0.5, torch.float32)
    for slot in range(slots):
        computed = rng.randrange(60, 110)
        state.computed[slot], state.lengths[slot] = computed, computed + 1
        head.stops[slot] = computed + 1 - rng.choice([0, 1, 4, 16, 17, 22, 40])
        head.oldest[slot] = rng.choice([0, 0, computed - 3])
        if rng.random() < 0.5:
            head.gaps[slot] = torch.tensor(sorted(rng.sample(range(1, int(head.stops[slot]) + 1), 2)))
    head.ring.copy_(reals(*head.ring.shape))
    head.before.copy_(reals(*head.before.shape))
    head.page_taps.copy_(reals(*head.page_taps.shape))
    head.marks.copy_(torch.randint(0, 2, head.marks.shape, generator=generator))
    picked = rng.sample(range(slots), rng.choice([1, 3, slots]))
    lines = [(slot, 1, rng.choice([0, 1, 2, 3]), 1) for slot in picked] + [(slots, 0, 0, 0)] * rng.choice([0, 2])
    tokens = torch.randint(0, 99, (len(lines), 3), generator=generator)
    drafts = PaddedDrafts(tokens, *torch.full((2, len(lines)), 7))
    return World(
        on(state, device),
        on(head, device),
        StepRows(torch.tensor(lines).T.contiguous().to(device)),
        PaddedDrafts(*(x.to(device) for x in drafts)),
    )


def on(holder, device: str):
    """Its tensors on the device."""
    if isinstance(holder, SlotState):
        for name, value in vars(holder).items():
            if isinstance(value, Tensor):
                setattr(holder, name, value.to(device))
        return holder
    moved = {f.name: getattr(holder, f.name) for f in fields(holder)}
    return replace(holder, **{name: x.to(device) for name, x in moved.items() if isinstance(x, Tensor)})


def assert_equal(ours: object, theirs: object) -> None:
    for f in fields(ours):  # type: ignore[arg-type]
        mine, other = getattr(ours, f.name), getattr(theirs, f.name)
        if isinstance(mine, Tensor):
            assert torch.equal(mine, other), f.name


def wanted(at: World, seed: int) -> steps.Wanted:
    """A proposal's rows, or some of a pass's, which may read from a step."""
    rng = random.Random(seed)
    slots = at.rows.slots
    if rng.random() < 0.4:
        return steps.Wanted(slots, at.rows.drafts, newest=True, tokens=len(slots) * rng.choice([1, 2, 16]))
    most = torch.tensor([rng.choice([0, 1, 7, 24]) for _ in slots]) * (slots.cpu() < 5)
    _, batch, taps, _ = fed(at, seed, spare=seed % 3)
    rows = torch.arange(len(slots), device=slots.device) * (slots < 5)
    source = steps.Fed(rows, batch, taps)
    step = source if rng.random() < 0.7 else None
    return steps.Wanted(slots, most.to(slots.device), newest=False, tokens=128, fed=step)


def test_passes_that_are_not_recorded_share_one_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows they have: what is compiled while requests wait holds all of them up."""
    from overdrive.draft.eagle3 import step_kernels

    class Launched:
        def __getitem__(self, grid: object) -> Any:
            return lambda *_, **constants: seen.setdefault(constants.pop("FED"), set()).add(str(constants))

    seen: dict[bool, set[str]] = {}
    rows = set()
    monkeypatch.setattr(step_kernels, "_plan_pairs", Launched())
    for seed in range(40):
        at = world(seed, "cpu")
        want = wanted(at, seed)
        if not want.newest:
            rows.add(len(want.slots))
            step_kernels.plan_pairs(at.state, at.head, want, torch.ones(64, dtype=torch.int64))
    assert len(rows) > 3 and [len(found) for found in seen.values()] == [1, 1]


@pytest.mark.parametrize("device", DEVICES)
def test_pairs(device: str) -> None:
    from overdrive.draft.eagle3 import step_kernels

    for seed in range(10 if device == "cpu" else 100):
        ours, theirs = (world(seed, device, width=24 * (seed % 5 < 4)) for _ in range(2))
        want, firsts = wanted(ours, seed), torch.ones(64, dtype=torch.int64, device=device)
        got = step_kernels.plan_pairs(ours.state, ours.head, want, firsts)
        expected = steps.plan_pairs(theirs.state, theirs.head, want, firsts)
        assert_equal(got.batch, expected.batch)
        assert torch.equal(got.next_positions, expected.next_positions)
        stand = int(expected.batch.offsets[-1])
        assert torch.equal(got.taps[:stand], expected.taps[:stand])
        offers = [at.drafts if want.newest else None for at in (ours, theirs)]
        step_kernels.note_pairs(ours.state, ours.head, want, offers[0])
        steps.note_pairs(theirs.state, theirs.head, want, offers[1])
        assert_equal(ours.head, theirs.head)
        assert all(torch.equal(x, y) for x, y in zip(ours.drafts, theirs.drafts, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_drafts(device: str) -> None:
    from overdrive.draft.eagle3 import step_kernels

    for seed in range(5):
        at = world(seed, device)
        for depth in (1, 2):
            got = step_kernels.plan_drafts(at.state, at.rows, at.drafts, depth)
            expected = steps.plan_drafts(at.state, at.rows, at.drafts, depth)
            assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))


def fed(at: World, seed: int, spare: int) -> tuple[StepRows, Batch, Tensor, Tensor]:
    """A padded batch of which the state has advanced: rows, batch, taps of a wider tensor, counts."""
    rng = random.Random(seed)
    slots = at.rows.slots.tolist()
    last = len(at.state.lengths) - 1
    known = [0 if slot == last else rng.choice([1, 1, 21]) for slot in slots]
    tokens = [0 if slot == last else count + rng.choice([0, 3]) for slot, count in zip(slots, known, strict=True)]
    counts = [0 if slot == last else rng.randint(0, 1 + n - k) for slot, k, n in zip(slots, known, tokens, strict=True)]
    ids, positions, of_row, writes = [], [], [], []
    for row, (slot, k, n, count) in enumerate(zip(slots, known, tokens, counts, strict=True)):
        begin = int(at.state.computed[slot]) - k - max(count - 1, 0)
        for place in range(begin, begin + n):
            page = int(at.state.page_table[slot, place // at.state.page_size])
            ids.append(0)
            positions.append(place)
            of_row.append(row)
            writes.append(page * at.state.page_size + place % at.state.page_size)
    offsets = [0, *torch.tensor(tokens).cumsum(0).tolist()]
    padding = [0] * spare
    flat = [ids + padding, positions + padding, of_row + [len(slots) - 1] * spare, writes + padding]
    device = at.rows.slots.device
    ids_, positions_, rows_, writes_ = torch.tensor(flat).to(device)
    zeros = torch.zeros(2 * len(slots), dtype=torch.int64, device=device)
    batch = Batch(
        ids=ids_,
        positions=positions_,
        rows=rows_,
        offsets=torch.tensor(offsets, device=device),
        page_table=at.state.page_table[at.rows.slots],
        starts=zeros[: len(slots)],
        gaps=zeros.view(-1, 2),
        writes=writes_,
        wanted=zeros,
    )
    width = at.head.ring.shape[2]
    taps = torch.randn((len(ids_), width + 3), generator=torch.Generator().manual_seed(seed)).to(device)[:, :width]
    rows = StepRows(torch.tensor([slots, known, slots, slots]).to(device))
    return rows, batch, taps, torch.tensor(counts, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_keep(device: str) -> None:
    from overdrive.draft.eagle3 import step_kernels

    for seed in range(8 if device == "cpu" else 100):
        ours, theirs = (world(seed, device, width=24 * (seed % 5 < 4)) for _ in range(2))
        rows, batch, taps, counts = fed(ours, seed, spare=seed % 3)
        step_kernels.keep(ours.state, ours.head, rows, batch, taps, counts)
        steps.keep(theirs.state, theirs.head, rows, batch, taps, counts)
        for x in (ours.head, theirs.head):  # what nobody reads: the spare slot, the scratch page
            x.ring[-1] = x.before[-1] = 0
            x.page_taps[0] = 0
        assert_equal(ours.head, theirs.head)


@pytest.mark.parametrize("device", DEVICES)
def test_copies(device: str) -> None:
    from overdrive.draft import copies_kernels

    found = 0
    for seed in range(12 if device == "cpu" else 100):
        rng, at = random.Random(seed), world(seed, device)
        at.state.history %= rng.choice([2, 3, 4])
        if seed % 4 == 0:
            at.state.history[:] = torch.arange(at.state.history.shape[1], device=device) % rng.choice([1, 2, 50])
        shortest, others = rng.choice([1, 2, 5]), rng.choice([0, 1])
        got, expected = (PaddedDrafts(*(x.clone() for x in at.drafts)) for _ in range(2))
        copies_kernels.copy_runs(at.state, at.rows, got, shortest, others, block=32)
        copies.copy_runs(at.state, at.rows, expected, shortest, others)
        assert torch.equal(got.counts, expected.counts)
        assert torch.equal(got.sources, expected.sources)
        offered = torch.arange(3, device=device) < expected.counts.unsqueeze(1)
        assert torch.equal(got.tokens * offered, expected.tokens * offered)
        found += int((expected.sources == 0).sum()) if others else int(expected.counts.sum())
    assert found > 10
