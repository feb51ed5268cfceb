"""Admissions that fail midway: whoever gets the slot next is admitted as if nothing had been before."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

from overdrive.device.cuda.sampling_state import BIASES, StaticSamplingState
from overdrive.device.sampling import Layout, SamplingState, sample
from overdrive.types import SamplingParams
from tests.loop.breaking import Breaking, once

VOCAB = 2 * BIASES
SEVERAL = tuple((token, 9.0) for token in range(BIASES + 3))  # more than there is room for at first
HEAVY = SamplingParams(
    max_tokens=9, logit_bias=SEVERAL, frequency_penalty=-50.0, min_tokens=4, stop_token_ids=(5, 6), temperature=0.8
)
LIGHT = SamplingParams(max_tokens=9, temperature=0.0)

MakeState = Callable[[int, int, torch.dtype], SamplingState]


def draws(state: SamplingState) -> list[int]:
    """What each of two slots draws from the same logits."""
    logits = torch.randn((1, VOCAB), generator=torch.Generator().manual_seed(1)).repeat(2, 1)
    rows, zero = torch.arange(2), torch.zeros(2, dtype=torch.int64)
    layout = Layout(rows, rows, zero, zero + 3)
    return sample(logits, layout, torch.zeros((2, 0), dtype=torch.int64), state).tolist()


@pytest.mark.parametrize("make", [SamplingState, StaticSamplingState])
@pytest.mark.parametrize("later", [LIGHT, HEAVY])
def test_the_next_request_of_a_slot_does_not_see_an_admission_that_failed(
    make: MakeState, later: SamplingParams
) -> None:
    whole = make(2, VOCAB, torch.float32)
    for slot in range(2):
        whole.admit(slot, later, [1, 2, 3], 2)
    for at in count():
        state = make(2, VOCAB, torch.float32)
        try:
            with Breaking(once(at, torch.OutOfMemoryError("broken"))):
                state.admit(0, HEAVY, [1, 2, 3, 4], 2)
        except torch.OutOfMemoryError:
            for slot in range(2):
                state.admit(slot, later, [1, 2, 3], 2)
            assert draws(state) == draws(whole), at
            continue
        break
    assert at > 20


@pytest.mark.parametrize("make", [SamplingState, StaticSamplingState])
def test_what_a_slot_says_is_not_counted_for_another_after_an_admission_that_failed(make: MakeState) -> None:
    """The penalised request that was in the slot is gone, and its line of counts may be another's by now."""

    def said(state: SamplingState) -> list[int]:
        state.admit(0, LIGHT, [1, 2, 3], 2)
        state.admit(1, HEAVY, [1, 2, 3], 2)
        state.absorb(torch.tensor([0]), torch.tensor([[9, 9]]), torch.tensor([2]))
        return draws(state)

    for at in count():
        state = make(2, VOCAB, torch.float32)
        state.admit(0, HEAVY, [1, 2, 3], 2)
        try:
            with Breaking(once(at, torch.OutOfMemoryError("broken"))):
                state.admit(0, LIGHT, [1, 2, 3], 2)
        except torch.OutOfMemoryError:
            assert said(state) == said(make(2, VOCAB, torch.float32)), at
            continue
        break
    assert at > 10


def test_tables_that_graphs_know_do_not_move_by_halves() -> None:
    """Their version tells of every move."""
    for at in count():
        state = StaticSamplingState(2, VOCAB, torch.float32)
        places = [table.data_ptr() for table in (state.stop_ids, state.bias_ids, state.bias)]
        try:
            with Breaking(once(at, torch.OutOfMemoryError("broken"))):
                state.admit(0, HEAVY, [1, 2, 3, 4], 2)
        except torch.OutOfMemoryError:
            moved = [table.data_ptr() for table in (state.stop_ids, state.bias_ids, state.bias)] != places
            assert moved == bool(state.version) and state.bias.shape == state.bias_ids.shape
            continue
        break
    assert state.version == 1
