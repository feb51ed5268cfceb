"""Laws of verification: drafts change how many tokens a step yields, never which."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from overdrive.device.sampling import Layout, SamplingState, sample
from overdrive.device.verify import verify
from overdrive.types import SamplingParams
from tests.device.sampling_oracle import probabilities
from tests.device.test_sampling_rules import RULES
from tests.device.toy_target import VOCAB, naive, speculative, toy_logits


def with_seed(params: SamplingParams, seed: int, max_tokens: int = 40) -> SamplingParams:
    fields = {name: getattr(params, name) for name in SamplingParams.__slots__}
    return SamplingParams(**{**fields, "seed": seed, "max_tokens": max_tokens})


@pytest.mark.parametrize("kind", ["oracle", "greedy guess", "random"])
def test_text_does_not_depend_on_the_number_or_quality_of_drafts(kind: str) -> None:
    random = np.random.default_rng(3)
    params = [with_seed(rules, seed) for seed, rules in enumerate(RULES.values())]
    prompts = [random.integers(0, VOCAB, 5).tolist() for _ in params]
    texts = [naive(p, prompt) for p, prompt in zip(params, prompts, strict=True)]
    whole = {tuple(prompt): [*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)}

    def propose(text: list[int], width: int) -> list[int]:
        n = random.integers(0, width + 1)
        if kind == "random":
            return random.integers(0, VOCAB, n).tolist()
        if kind == "oracle":
            return whole[tuple(text[:5])][len(text) : len(text) + n]
        guess: list[int] = []
        for _ in range(n):
            guess.append(int(toy_logits([*text, *guess]).argmax()))
        return guess

    outputs, accepted = speculative(params, prompts, propose, random)
    assert outputs == texts
    assert accepted > {"oracle": 150, "greedy guess": 30, "random": 0}[kind]


def chain(drafts: list[list[int]], n_drafts: list[int], logits: torch.Tensor, params: SamplingParams, first: int = 1):
    """Verify rows that all have full-width logits `logits` [K+1, V] by depth, at positions that never repeat."""
    rows, depths = len(drafts), len(logits)
    state = SamplingState(1, logits.shape[1], logits.dtype)
    state.admit(0, params, [0], 1)
    row = torch.arange(rows).repeat_interleave(depths)
    depth = torch.arange(depths).repeat(rows)
    layout = Layout(row, row * 0, depth, first + row * depths + depth)
    return verify(logits.repeat(rows, 1), layout, torch.tensor(drafts), torch.tensor(n_drafts), state)


def test_longest_agreeing_prefix_is_accepted_and_one_draw_follows() -> None:
    logits = torch.eye(6)[[4, 2, 5, 1]]  # greedy draws 4 2 5 1
    drafts = [[4, 2, 5], [4, 2, 0], [4, 0, 5], [0, 2, 5], [4, 2, 5], [4, 2, 5]]
    got = chain(drafts, [3, 3, 3, 3, 1, 0], logits, RULES["greedy"])
    assert got.counts.tolist() == [4, 3, 2, 1, 2, 1]
    assert got.tokens.tolist() == [[4, 2, 5, 1], [4, 2, 5, 0], [4, 2, 0, 0], [4, 0, 0, 0], [4, 2, 0, 0], [4, 0, 0, 0]]


def test_rows_without_logits_have_count_0() -> None:
    state = SamplingState(3, 4, torch.float32)
    state.admit(2, RULES["greedy"], [0], 1)
    layout = Layout(*(torch.tensor([value]) for value in (1, 2, 0, 1)))
    got = verify(
        torch.eye(4)[3:], layout, torch.zeros((3, 2), dtype=torch.int64), torch.zeros(3, dtype=torch.int64), state
    )
    assert got.counts.tolist() == [0, 1, 0]
    assert got.tokens.tolist() == [[0, 0, 0], [3, 0, 0], [0, 0, 0]]


def test_a_draft_without_logits_behind_it_is_not_accepted() -> None:
    state = SamplingState(1, 6, torch.float32)
    state.admit(0, RULES["greedy"], [0], 1)
    depth = torch.arange(2)
    layout = Layout(depth * 0, depth * 0, depth, depth + 1)
    got = verify(torch.eye(6)[[4, 2]], layout, torch.tensor([[4, 2, 5]]), torch.tensor([3]), state)
    assert got.counts.tolist() == [2]
    assert got.tokens.tolist() == [[4, 2, 0, 0]]


@pytest.mark.parametrize("quality", ["none", "some", "all"])
def test_accepted_tokens_follow_the_target_distribution(quality: str) -> None:
    params = SamplingParams(max_tokens=9, temperature=1.1, top_p=0.95, seed=11)
    random = np.random.default_rng(4)
    logits = torch.from_numpy(random.normal(size=(4, 8)) * (3.0 if quality == "all" else 1.0))
    rows = 20_000
    best = logits[:3].argmax(dim=1).numpy()
    worst = logits[:3].argmin(dim=1).numpy()
    drafts = {
        "none": np.tile(worst, (rows, 1)),
        "some": random.integers(0, 8, (rows, 3)),
        "all": np.tile(best, (rows, 1)),
    }
    got = chain(drafts[quality].tolist(), random.integers(0, 4, rows).tolist(), logits, params)
    assert got.counts.max() == (1 if quality == "none" else 4)
    for depth in range(int(got.counts.max())):
        tokens = got.tokens[got.counts > depth, depth].numpy()
        expected = len(tokens) * np.array(probabilities(logits[depth].tolist(), params))
        observed = np.bincount(tokens, minlength=8)
        assert (observed[expected == 0] == 0).all()
        seen = expected > 0
        assert ((observed - expected)[seen] ** 2 / expected[seen]).sum() < 29  # p < 0.0002 at 7 degrees of freedom


@pytest.mark.parametrize("name", ["penalties", "rewards", "greedy_penalties", "all"])
def test_penalties_inside_a_window_equal_one_token_at_a_time(name: str) -> None:
    """Drafts that repeat one token: each position must count those before it."""
    params, prompt, output = RULES[name], [1, 2], [2, 3]
    logits = torch.zeros((4, 6), dtype=torch.float64) + torch.tensor([0.0, 0.1, 0.2, 0.3, 1.0, 0.2])
    drafts = torch.tensor([[4, 4, 4]])
    state = SamplingState(1, 6, torch.float64)
    state.admit(0, params, [*prompt, *output], 2)
    depth = torch.arange(4)
    window = sample(logits, Layout(depth * 0, depth * 0, depth, 4 + depth), drafts, state)
    for d in range(4):
        state.admit(0, params, [*prompt, *output, *[4] * d], 2)
        one = Layout(*(torch.tensor([value]) for value in (0, 0, 0, 4 + d)))
        assert sample(logits[d : d + 1], one, drafts[:, :0], state).item() == window[d]


def test_absorbed_tokens_count_like_admitted_ones() -> None:
    params = SamplingParams(max_tokens=9, frequency_penalty=0.5)
    state = SamplingState(4, 10, torch.float64)
    for slot in (3, 0):
        state.admit(slot, params, [1, 5], 1)
    state.admit(1, RULES["plain"], [1], 1)
    tokens = torch.tensor([[5, 5, 2, 0], [1, 1, 1, 1], [9, 0, 0, 0]])
    state.absorb(torch.tensor([3, 1, 0]), tokens, torch.tensor([3, 4, 1]))
    entries = state.counts.entry
    assert state.counts.output[entries[3]].tolist() == [0, 0, 1, 0, 0, 3, 0, 0, 0, 0]
    assert state.counts.output[entries[0]].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert len(state.counts.output) == 2


def test_counts_are_kept_for_penalised_slots_only() -> None:
    state = SamplingState(64, 1000, torch.float32)
    for slot in range(64):
        state.admit(slot, RULES["plain"], [1, 2], 2)
    assert state.counts.output.numel() == 0
    for slot in (5, 9, 5, 9, 5):
        state.admit(slot, RULES["penalties"], [1, 2], 2)
    assert len(state.counts.output) == 2
