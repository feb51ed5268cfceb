"""Laws of the fast CPU sampler: it draws what the reference draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from overdrive.device.cpu.sampling import CpuSampler
from overdrive.device.cpu.team import Team
from overdrive.device.sampling import Layout, Masks, SamplingState, sample
from overdrive.types import SamplingParams
from tests.device.sampling_batches import Batch, margins, random_batch, random_logits
from tests.device.test_sampling_rules import RULES
from tests.device.test_verify import with_seed
from tests.device.toy_target import VOCAB, naive, speculative


@pytest.mark.parametrize("vocab", [7, 31, 64, 300, 777])
def test_draws_equal_the_reference_in_float64(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    sampler = CpuSampler(vocab, torch.float64, Team(2))
    for _ in range(60):
        batch = random_batch(random, 12, vocab, torch.float64)
        tokens, expected = sampler(*batch), sample(*batch)
        assert torch.equal(tokens, expected), (tokens != expected).nonzero()


def test_draws_equal_the_reference_in_float32_but_for_near_ties() -> None:
    random = np.random.default_rng(0)
    sampler = CpuSampler(5003, torch.float32, Team(2))
    drawn = differ = 0
    for _ in range(20):
        batch = random_batch(random, 24, 5003, torch.float32)
        tokens, expected = sampler(*batch), sample(*batch)
        apart = (tokens != expected).nonzero().squeeze(1)
        near = margins(batch, tokens, expected)[apart]
        assert (near < 1e-4 * (1 + batch.logits[apart].nan_to_num(0, 0, 0).abs().amax(1))).all()
        drawn, differ = drawn + len(tokens), differ + len(apart)
    print(f"near-ties: {differ} of {drawn}")
    assert differ <= drawn // 200


def test_greedy_draws_are_the_best_that_masks_of_any_width_allow() -> None:
    random = np.random.default_rng(5)
    rows, vocab = 40, 777
    state = SamplingState(rows, vocab, torch.float64)
    for slot in range(rows):
        state.admit(slot, SamplingParams(max_tokens=9, temperature=0.0), [0], 1)
    index = torch.arange(rows)
    layout, drafts = Layout(index, index, index * 0, index), torch.zeros((rows, 0), dtype=torch.int64)
    for width in (0.0, 0.001, 0.01, 0.3, 0.9, 0.999, 1.0):
        allowed = random.random((rows, 32 * -(-vocab // 32))) < width
        bits = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
        masks = Masks(bits, torch.where(index % 5 > 0, index, -1))
        batch = Batch(random_logits(random, rows, vocab, torch.float64), layout, drafts, state, masks)
        assert torch.equal(CpuSampler(vocab, torch.float64, Team(2))(*batch), sample(*batch))


def one_request(params: SamplingParams, logits: torch.Tensor) -> Batch:
    """The same logits [V] at 2000 positions of one request."""
    state = SamplingState(1, len(logits), logits.dtype)
    state.admit(0, params, [0], 1)
    index = torch.arange(2000)
    layout = Layout(index * 0, index * 0, index * 0, index)
    return Batch(logits.expand(2000, -1), layout, torch.zeros((1, 0), dtype=torch.int64), state, None)


def test_a_nucleus_may_end_exactly_between_two_values() -> None:
    logits = torch.where(torch.arange(160) % 2 == 0, 1e-17, 0.0).double()  # all of mass 1: half of them are kept
    batch = one_request(SamplingParams(max_tokens=9, top_p=0.5), logits)
    tokens = CpuSampler(160, torch.float64, Team(2))(*batch)
    assert torch.equal(tokens, sample(*batch))
    assert (tokens % 2 == 0).all()


def test_equal_scores_go_to_the_lower_id() -> None:
    logits = torch.full((20,), 1e7)  # where float32 counts in ones, so that sums with noise are often equal
    logits[15] += 1
    batch = one_request(SamplingParams(max_tokens=9), logits)
    tokens, expected = CpuSampler(20, torch.float32, Team(2))(*batch), sample(*batch)
    assert (tokens != expected).sum() <= 2  # logarithms that round to another one


def test_a_row_does_not_depend_on_its_neighbours_or_on_threads() -> None:
    batch = random_batch(np.random.default_rng(1), 30, 900, torch.float32)
    tokens = CpuSampler(900, torch.float32, Team(2))(*batch)
    alone = CpuSampler(900, torch.float32, Team(1))
    logits, layout, drafts, state, _ = batch
    for n in range(len(tokens)):
        one = Layout(*(field[n : n + 1] for field in (layout.rows, layout.slots, layout.depths, layout.positions)))
        masks = batch.masks and type(batch.masks)(batch.masks.bits, batch.masks.index[n : n + 1])
        assert alone(logits[n : n + 1], one, drafts, state, masks) == tokens[n]


def test_logits_are_left_alone() -> None:
    batch = random_batch(np.random.default_rng(2), 10, 100, torch.float32)
    before = batch.logits.clone()
    CpuSampler(100, torch.float32, Team(2))(*batch)
    assert torch.equal(batch.logits.nan_to_num(7.0), before.nan_to_num(7.0))


def test_no_rows_draw_nothing() -> None:
    batch = random_batch(np.random.default_rng(3), 2, 10, torch.float32)
    empty = Layout(*torch.zeros((4, 0), dtype=torch.int64))
    assert len(CpuSampler(10, torch.float32, Team(2))(batch.logits[:0], empty, batch.drafts, batch.state)) == 0


def test_text_is_that_of_one_token_at_a_time() -> None:
    random = np.random.default_rng(4)
    params = [with_seed(rules, seed) for seed, rules in enumerate(RULES.values())]
    prompts = [random.integers(0, VOCAB, 5).tolist() for _ in params]
    sampler = CpuSampler(VOCAB, torch.float64, Team(2))
    outputs, accepted = speculative(
        params, prompts, lambda _, width: random.integers(0, VOCAB, width).tolist(), random, sampler
    )
    assert outputs == [naive(p, prompt) for p, prompt in zip(params, prompts, strict=True)]
    assert accepted > 0
