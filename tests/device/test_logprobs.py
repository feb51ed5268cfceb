"""Laws of reported log-probabilities."""

from __future__ import annotations

import math

import torch

from overdrive.device.logprobs import logprobs


def test_logprobs_are_the_log_softmax_of_raw_logits() -> None:
    logits = torch.randn((20, 33), generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(20)
    got = logprobs(logits, tokens, 5)
    reference = logits.double().log_softmax(dim=1)
    order = reference.sort(dim=1, descending=True, stable=True)
    torch.testing.assert_close(got.chosen.double(), reference[tokens, tokens], atol=1e-5, rtol=0)
    torch.testing.assert_close(got.top.double(), order.values[:, :5], atol=1e-5, rtol=0)
    assert torch.equal(got.top_ids, order.indices[:, :5])
    assert torch.equal(got.ranks - 1, (order.indices == tokens.unsqueeze(1)).nonzero()[:, 1])


def test_ties_rank_the_lower_id_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0]]).expand(5, -1)
    got = logprobs(logits, torch.arange(5), 4)
    assert got.ranks.tolist() == [4, 1, 2, 5, 3]
    assert got.top_ids[0].tolist() == [1, 2, 4, 0]


def test_no_alternatives_and_more_than_the_vocabulary() -> None:
    logits = torch.zeros((2, 3))
    assert logprobs(logits, torch.zeros(2, dtype=torch.int64), 0).top_ids.shape == (2, 0)
    assert logprobs(logits, torch.zeros(2, dtype=torch.int64), 20).top_ids.tolist() == [[0, 1, 2]] * 2


def test_hopeless_logits_give_finite_numbers_and_distinct_alternatives() -> None:
    logits = torch.tensor([[math.nan, -math.inf, 2.0, -math.inf]])
    got = logprobs(logits, torch.tensor([2]), 4)
    assert got.chosen.item() == 0
    assert got.top_ids.tolist() == [[2, 0, 1, 3]]
    assert got.top.isfinite().all()


def test_take_selects_rows_and_alternatives() -> None:
    got = logprobs(torch.arange(12.0).reshape(3, 4), torch.zeros(3, dtype=torch.int64), 3).take(torch.tensor([2, 0]), 2)
    assert got.ranks.tolist() == [4, 4]
    assert got.top_ids.tolist() == [[3, 2], [3, 2]]
