"""The CUDA sampler draws what the reference draws, from tables that never move."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from overdrive.device.cuda.sampling import CudaSampler
from overdrive.device.cuda.sampling_state import BIASES, StaticSamplingState, rules_of
from overdrive.device.sampling import Layout, SamplingState, sample
from overdrive.types import Admission, SamplingParams
from tests.device.sampling_batches import Batch, random_batch, random_params

VOCAB = 300
GREEDY = SamplingParams(max_tokens=9, temperature=0.0)


def random_admissions(random: np.random.Generator, vocab: int, slots: int) -> list[Admission]:
    """To some of the slots, with prompts and output so far."""
    chosen = random.permutation(slots)[: random.integers(1, slots + 1)].tolist()
    return [
        Admission("r", slot, tuple(random.integers(0, vocab, 12).tolist()), 5, 0, random_params(random, vocab))
        for slot in chosen
    ]


def with_tables_of(batch: Batch, admissions: list[Admission]) -> tuple[Batch, Batch]:
    """The batch over a static state and over the reference's, after the same admissions."""
    slots = len(batch.state.top_p)
    ours, theirs = (kind(slots, VOCAB, batch.state.dtype) for kind in (StaticSamplingState, SamplingState))
    ours.admit_all(admissions)
    for admission in admissions:
        theirs.admit(admission.slot, admission.params, admission.tokens, admission.prompt_len)
    return batch._replace(state=ours), batch._replace(state=theirs)


def test_batched_admissions_are_the_single_ones() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        batch = random_batch(random, 8, VOCAB, torch.float64)
        admissions = random_admissions(random, VOCAB, 11)
        ours, theirs = with_tables_of(batch, admissions)
        assert torch.equal(sample(*ours), sample(*theirs))
        # A slot's next request finds nothing of the one before.
        again = random_admissions(random, VOCAB, 11)
        ours.state.admit_all(again)  # type: ignore[attr-defined]
        for admission in again:
            theirs.state.admit(admission.slot, admission.params, admission.tokens, admission.prompt_len)
        slots = torch.randint(0, 11, (4,))
        tokens, counts = torch.randint(0, VOCAB, (4, 3)), torch.tensor([0, 1, 3, 2])
        for state in (ours.state, theirs.state):
            state.absorb(slots, tokens, counts)
        assert torch.equal(sample(*ours), sample(*theirs))


@pytest.mark.parametrize("rules", ["plain", "noisy", "full"])
def test_draws_are_the_reference_s(rules: str) -> None:
    random = np.random.default_rng(1)
    sampler = CudaSampler(64, VOCAB, "cpu")
    for _ in range(15):
        batch = random_batch(random, 8, VOCAB, torch.float64)
        admissions = [a for a in random_admissions(random, VOCAB, 11) if rules_of(a.params) == rules] or [
            Admission("r", 0, (1,), 1, 0, GREEDY)
        ]
        ours, theirs = with_tables_of(batch._replace(masks=None), admissions)
        out = torch.full((len(batch.logits),), -1)
        drawn = sampler.draw(ours.logits, ours.layout, ours.drafts, ours.state, rules, out=out)  # type: ignore[arg-type]
        own = torch.isin(batch.layout.slots, torch.tensor([a.slot for a in admissions]))  # others need other rules
        assert torch.equal(drawn[own], sample(*theirs)[own])
        assert out is drawn


def test_a_smaller_vocabulary_is_drawn_from_by_the_target_s_ids() -> None:
    random = np.random.default_rng(2)
    sampler = CudaSampler(64, VOCAB, "cpu")
    for rules in ("plain", "full"):
        batch = random_batch(random, 8, VOCAB, torch.float64)
        params = [random_params(random, VOCAB) if rules == "full" else GREEDY for _ in range(11)]
        ours, theirs = with_tables_of(batch, [Admission("r", i, (1, 2), 1, 0, p) for i, p in enumerate(params)])
        ids = torch.from_numpy(random.permutation(VOCAB)[:90])
        few = theirs.logits.nan_to_num(0, 50, -50)
        others = torch.ones(VOCAB, dtype=torch.bool).scatter(0, ids, False)
        expected = sample(few.masked_fill(others, -torch.inf), ours.layout, ours.drafts, theirs.state)
        drawn = sampler.draw(few[:, ids], ours.layout, ours.drafts, ours.state, rules, ids)  # type: ignore[arg-type]
        assert torch.equal(drawn, expected)


@pytest.mark.parametrize(
    ("params", "rules"),
    [
        ({"temperature": 0.0}, "plain"),
        ({"temperature": 0.0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "stop_token_ids": (1,)}, "plain"),
        ({}, "noisy"),
        ({"top_k": 5}, "full"),
        ({"top_p": 0.5}, "full"),
        ({"min_p": 0.5}, "full"),
        ({"temperature": 0.0, "min_tokens": 1}, "full"),
        ({"temperature": 0.0, "logit_bias": ((1, 1.0),)}, "full"),
        ({"temperature": 0.0, "repetition_penalty": 1.1}, "full"),
    ],
)
def test_rules_are_as_few_as_a_request_needs(params: dict, rules: str) -> None:
    state = StaticSamplingState(4, VOCAB, torch.float32)
    state.admit(1, SamplingParams(max_tokens=9, **params), [3], 1)
    state.admit(2, GREEDY, [3], 1)
    assert state.rules([1, 2]) == rules
    assert state.rules([2]) == state.rules([]) == "plain"


def test_tables_move_only_for_lists_that_no_server_lets_in() -> None:
    state = StaticSamplingState(3, 3 * BIASES, torch.float32)
    places = state.bias_ids.data_ptr(), state.counts.output.data_ptr()
    longest = tuple((token, 1.0) for token in range(BIASES))
    state.admit(0, SamplingParams(max_tokens=9, logit_bias=longest, frequency_penalty=1.0), [3], 1)
    assert (state.bias_ids.data_ptr(), state.counts.output.data_ptr()) == places
    assert state.version == 0
    state.admit(1, SamplingParams(max_tokens=9, logit_bias=((7, 90.0), *longest)), [3], 1)
    assert state.version == 0  # an id given twice counts once
    state.admit(1, SamplingParams(max_tokens=9, logit_bias=((2 * BIASES, 90.0), *longest)), [3], 1)
    assert state.version == 1
    one = Layout(*torch.tensor([[0], [1], [0], [5]]))
    logits = torch.zeros((1, 3 * BIASES))
    drawn = CudaSampler(1, 3 * BIASES, "cpu").draw(logits, one, torch.zeros((1, 0), dtype=torch.int64), state, "full")
    assert drawn.tolist() == [2 * BIASES]
