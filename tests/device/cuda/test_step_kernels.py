"""The kernels of a step's bookkeeping write what their forms in torch write: in Triton's interpreter, and on CUDA."""

from __future__ import annotations

import pytest
import torch

from overdrive.device.cuda.changes import pack, torch_enter
from overdrive.device.cuda.steps import torch_accept, torch_flatten
from overdrive.device.verify import Imposed
from overdrive.types import Admission, PageEntry, SamplingParams
from tests.device.cuda.devices import DEVICES
from tests.device.cuda.schedules import SLOTS, contents, random_state, random_step, tensors

pytest.importorskip("triton")

from overdrive.device.cuda import step_kernels


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_steps(device: str) -> None:
    for seed in range(12 if device == "cpu" else 100):
        ours, theirs = random_step(seed, device), random_step(seed, device)
        for step, flatten in ((ours, step_kernels.flatten), (theirs, torch_flatten)):
            flatten(step.state, step.rows, step.drafts, step.n_drafts, step.batch, step.layout)
        assert equal(tensors(ours.batch, ours.layout), tensors(theirs.batch, theirs.layout))

        rows, queries = len(ours.n_drafts), ours.drafts.shape[1] + 1
        drawn = torch.randint(0, 3, (rows * queries,), generator=torch.Generator().manual_seed(seed)).to(device)
        rates = torch.tensor([0.8, 0.6, 0.5, 0.5], device=device)
        imposed = Imposed(rates, torch.arange(SLOTS + 1, device=device) * 2**40 - seed) if seed % 3 == 0 else None
        found = []
        for step, accept in ((ours, step_kernels.accept), (theirs, torch_accept)):
            tokens = torch.full((rows, queries), -1, device=device)
            counts = torch.full((rows,), -1, device=device)
            accept(drawn, step.rows, step.drafts, step.n_drafts, step.state, tokens, counts, imposed)
            found.append([tokens, counts, *contents(step.state)])
        assert equal(*found)


@pytest.mark.parametrize("device", DEVICES)
def test_changes(device: str) -> None:
    params = SamplingParams(max_tokens=1)
    admissions = [Admission("r", slot, tuple(range(5, 25 + slot)), 5, slot, params) for slot in (3, 0, 6)]
    entries = [PageEntry(3, 0, (8, 9, 10)), PageEntry(2, 4, (7, 7)), PageEntry(2, 8, (1,)), PageEntry(5, 16, (3,))]
    ours, theirs = random_state(0, device), random_state(0, device)
    changes = pack(admissions, entries)
    step_kernels.enter(ours, changes.to(torch.device(device)))
    torch_enter(theirs, changes.to(torch.device(device)))
    assert equal(contents(ours), contents(theirs))
