"""Laws of the sampling rules, position by position."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from overdrive.device.noise import keyed_noise
from overdrive.device.sampling import Layout, Masks, SamplingState, sample
from overdrive.types import SamplingParams
from tests.device.sampling_oracle import adjusted, oracle_draw, probabilities

RULES = {
    "greedy": SamplingParams(max_tokens=9, temperature=0),
    "plain": SamplingParams(max_tokens=9),
    "hot": SamplingParams(max_tokens=9, temperature=1.7),
    "top_k": SamplingParams(max_tokens=9, top_k=4),
    "top_p": SamplingParams(max_tokens=9, top_p=0.7),
    "min_p": SamplingParams(max_tokens=9, temperature=1.5, min_p=0.2),
    "filters": SamplingParams(max_tokens=9, temperature=1.2, top_k=7, top_p=0.8, min_p=0.05),
    "penalties": SamplingParams(max_tokens=9, presence_penalty=0.7, frequency_penalty=0.5, repetition_penalty=1.3),
    "rewards": SamplingParams(max_tokens=9, presence_penalty=-0.7, frequency_penalty=-0.5, repetition_penalty=0.7),
    "greedy_penalties": SamplingParams(max_tokens=9, temperature=0, frequency_penalty=1.0, repetition_penalty=1.2),
    "bias": SamplingParams(max_tokens=9, logit_bias=((3, 2.0), (5, -100.0))),
    "min_tokens": SamplingParams(max_tokens=9, min_tokens=4, stop_token_ids=(0, 1, 2)),
    "all": SamplingParams(
        max_tokens=9,
        temperature=0.8,
        top_k=9,
        top_p=0.9,
        min_p=0.02,
        presence_penalty=0.3,
        frequency_penalty=-0.2,
        repetition_penalty=1.1,
        logit_bias=((1, 1.0),),
        min_tokens=2,
        stop_token_ids=(2, 999),
    ),
}


def draw(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt: list[int] = [],  # noqa: B006
    output: list[int] = [],  # noqa: B006
    positions: torch.Tensor | None = None,
    masks: Masks | None = None,
) -> torch.Tensor:
    """Tokens of logit rows [N, V] that all belong to one request, at its next position or at `positions`."""
    state = SamplingState(1, logits.shape[1], logits.dtype)
    state.admit(0, params, [*prompt, *output], len(prompt))
    zeros = torch.zeros(len(logits), dtype=torch.int64)
    at = positions if positions is not None else zeros + len(prompt) + len(output)
    return sample(logits, Layout(zeros, zeros, zeros, at), torch.zeros((1, 0), dtype=torch.int64), state, masks)


def packed(allowed: torch.Tensor) -> torch.Tensor:
    """[M, V] bool as [M, ceil(V / 32)] int32."""
    bits = np.packbits(allowed.numpy(), axis=1, bitorder="little")
    bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 4)))
    return torch.from_numpy(bits.view(np.int32))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_draws_the_oracles_token(name: str) -> None:
    random = np.random.default_rng(1)
    for trial in range(60):
        logits = random.normal(size=19) * 2
        if trial % 3 == 0:
            logits = logits.round()  # many ties
        prompt = random.integers(0, 19, random.integers(1, 6)).tolist()
        output = random.integers(0, 19, random.integers(0, 8)).tolist()
        got = draw(torch.tensor(logits)[None], RULES[name], prompt, output)
        assert got.item() == oracle_draw(logits.tolist(), RULES[name], prompt, output)


@pytest.mark.parametrize("name", [name for name in RULES if not name.startswith("greedy")])
def test_frequencies_follow_the_distribution(name: str) -> None:
    params = RULES[name]
    logits = (np.random.default_rng(2).normal(size=12) * 1.5).tolist()
    prompt, output = [1, 2, 3], [3, 4, 4, 5, 7, 7, 7]
    n = 20_000
    tokens = draw(torch.tensor(logits, dtype=torch.float64).expand(n, -1), params, prompt, output, torch.arange(n) + 9)
    expected = n * np.array(probabilities(adjusted(logits, params, prompt, output), params))
    observed = np.bincount(tokens.numpy(), minlength=12)
    assert (observed[expected == 0] == 0).all()
    seen = expected > 0
    assert ((observed - expected)[seen] ** 2 / expected[seen]).sum() < 35  # p < 0.0003 at 11 degrees of freedom


def test_same_seed_same_tokens_and_another_seed_others() -> None:
    logits = torch.zeros((64, 50))
    one, again, other = (
        draw(logits, SamplingParams(max_tokens=9, seed=seed), positions=torch.arange(64)) for seed in (7, 7, 8)
    )
    assert torch.equal(one, again)
    assert (one != other).sum() > 50
    assert not torch.equal(one, draw(logits, SamplingParams(max_tokens=9, seed=7 + 2**32), positions=torch.arange(64)))


def test_greedy_rows_do_not_feel_hot_neighbours() -> None:
    logits = torch.randn((40, 30), generator=torch.Generator().manual_seed(0))
    state = SamplingState(2, 30, torch.float32)
    state.admit(0, SamplingParams(max_tokens=9, temperature=0), [1], 1)
    state.admit(1, SamplingParams(max_tokens=9, temperature=2, top_p=0.9, frequency_penalty=1), [1, 2], 1)
    index = torch.arange(40)
    layout = Layout(index, index % 2, index * 0, index)
    tokens = sample(logits, layout, torch.zeros((40, 0), dtype=torch.int64), state)
    assert torch.equal(tokens[::2], logits[::2].argmax(dim=1))


@pytest.mark.parametrize("params", [RULES["greedy"], SamplingParams(max_tokens=9, top_k=1)])
def test_ties_go_to_the_lower_id(params: SamplingParams) -> None:
    assert draw(torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0]]), params).item() == 1


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=9, top_k=3), SamplingParams(max_tokens=9, top_p=0.5)])
def test_ties_at_a_filters_boundary_keep_the_lower_ids(params: SamplingParams) -> None:
    tokens = draw(torch.ones((3000, 6)), params, positions=torch.arange(3000))
    assert tokens.unique().tolist() == [0, 1, 2]


def test_min_tokens_bans_stops_until_its_position() -> None:
    params = SamplingParams(max_tokens=9, temperature=0, min_tokens=2, stop_token_ids=(4,))
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0, 9.0]])
    assert [draw(logits, params, [1], [2] * n).item() for n in range(4)] == [1, 1, 4, 4]


def test_a_bias_of_minus_100_bans_the_favourite() -> None:
    logits = torch.tensor([[0.0, 30.0, 2.0]]).expand(500, -1)
    params = SamplingParams(max_tokens=9, logit_bias=((1, -100.0),))
    assert not (draw(logits, params, positions=torch.arange(500)) == 1).any()


def test_masks_leave_only_allowed_tokens_and_rows_without_mask_alone() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn((400, 70), generator=random)
    allowed = torch.rand((8, 70), generator=random) < 0.2
    index = torch.arange(400) % 9 - 1
    params = SamplingParams(max_tokens=9, temperature=1.5)
    free = draw(logits, params, positions=torch.arange(400))
    tokens = draw(logits, params, positions=torch.arange(400), masks=Masks(packed(allowed), index))
    masked = index >= 0
    assert allowed[index[masked], tokens[masked]].all()
    assert torch.equal(tokens[~masked], free[~masked])
    assert not allowed[index[masked], free[masked]].all()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_hopeless_logits_still_yield_the_lowest_legal_token(name: str, dtype: torch.dtype, value: float) -> None:
    params = RULES[name]
    logits = torch.full((1, 40), value, dtype=dtype)
    allowed = torch.zeros((1, 40), dtype=torch.bool)
    allowed[0, [6, 11, 33]] = True
    got = draw(logits, params, [9], [1] * 5, masks=Masks(packed(allowed), torch.zeros(1, dtype=torch.int64)))
    assert got.item() == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_hopeless_logits_do_not_lift_the_ban_of_min_tokens(temperature: float) -> None:
    params = SamplingParams(max_tokens=9, temperature=temperature, min_tokens=4, stop_token_ids=(0, 1, 2))
    assert draw(torch.full((1, 8), -math.inf), params, [5]).item() == 3


def test_a_lone_survivor_wins_even_with_the_worst_noise() -> None:
    position = torch.tensor([71278345])  # seed 0 and token 5 meet one of the 128 hashes that float32 rounds to v = 1
    assert keyed_noise(torch.tensor(0), position, torch.tensor(5), torch.float32) == -math.inf
    logits = torch.zeros((1, 8))
    logits[0, 5] = 9
    for params in (SamplingParams(max_tokens=9, top_k=1), SamplingParams(max_tokens=9, min_p=0.5)):
        assert draw(logits, params, positions=position).item() == 5


def test_a_grammar_that_leaves_only_a_stop_wins_over_min_tokens() -> None:
    params = SamplingParams(max_tokens=9, min_tokens=5, stop_token_ids=(3,))
    allowed = torch.zeros((1, 8), dtype=torch.bool)
    allowed[0, 3] = True
    masks = Masks(packed(allowed), torch.zeros(200, dtype=torch.int64))
    assert (draw(torch.randn((200, 8)), params, [1], [], torch.arange(200) * 0 + 1, masks) == 3).all()


def test_nan_never_wins_over_a_number() -> None:
    logits = torch.full((300, 20), math.nan)
    logits[:, 13] = -5.0
    tokens = draw(logits, SamplingParams(max_tokens=9, temperature=1.0), positions=torch.arange(300))
    assert (tokens == 13).all()


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    params = SamplingParams(max_tokens=9, min_tokens=9, stop_token_ids=(99, 3), logit_bias=((50, 100.0), (2, 9.0)))
    assert (draw(torch.zeros((50, 8)), params, positions=torch.arange(50)) == 2).float().mean() > 0.9


def test_readmission_forgets_the_slots_earlier_request() -> None:
    state = SamplingState(2, 8, torch.float64)
    heavy = SamplingParams(
        max_tokens=9, frequency_penalty=2.0, logit_bias=((1, 5.0), (2, 5.0), (3, 5.0)), stop_token_ids=(1, 2, 3, 4)
    )
    fresh = SamplingState(2, 8, torch.float64)
    for slot in (0, 1, 0):
        state.admit(slot, heavy, [1, 2, 3, 3], 1)
    plain = SamplingParams(max_tokens=9, temperature=0.9)
    state.admit(0, plain, [1], 1)
    fresh.admit(0, plain, [1], 1)
    index = torch.arange(100)
    layout = Layout(index, index * 0, index * 0, index)
    logits, drafts = torch.zeros((100, 8), dtype=torch.float64), torch.zeros((100, 0), dtype=torch.int64)
    assert torch.equal(sample(logits, layout, drafts, state), sample(logits, layout, drafts, fresh))
    repeats = SamplingParams(max_tokens=9, repetition_penalty=5.0)
    for prompt in ([1, 2, 3], [4], [5]):
        state.admit(0, repeats, prompt, len(prompt))
    fresh.admit(0, repeats, [5], 1)
    assert torch.equal(sample(logits + 3, layout, drafts, state), sample(logits + 3, layout, drafts, fresh))
