"""Log-probabilities of all logit rows at once are those of single rows, in torch and in the kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from overdrive.device.cuda.logprobs import Scores, torch_score
from overdrive.device.logprobs import logprobs
from tests.device.cuda.devices import DEVICES
from tests.device.sampling_batches import random_logits


def test_rows_stand_at_the_front_of_their_tensors() -> None:
    random = np.random.default_rng(0)
    logits, tokens = random_logits(random, 5, 60, torch.float64), torch.from_numpy(random.integers(0, 60, 5))
    scores = Scores(8, 3, "cpu")
    torch_score(logits, tokens, scores)
    expected = logprobs(logits, tokens, 3)
    for name in type(expected).__slots__:
        assert torch.equal(getattr(scores.of(5), name), getattr(expected, name))
        assert not getattr(scores.found, name)[5:].any()


def test_a_vocabulary_may_be_smaller_than_the_list() -> None:
    scores = Scores(1, 20, "cpu")
    torch_score(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([0]), scores)
    assert scores.found.top_ids[0].tolist() == [1, 2, 0] + [0] * 17


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [0, 1, 20])
def test_kernels(n: int, device: str) -> None:
    pytest.importorskip("triton")
    from overdrive.device.cuda import logprobs_kernels

    random = np.random.default_rng(n)
    for rows, vocab in ((3, 15), (4, 1024), (3, 2500)) if device == "cpu" else ((1, 15), (64, 5003), (40, 128_256)):
        logits = random_logits(random, rows, vocab, torch.float32).to(device)
        tokens = torch.from_numpy(random.integers(0, vocab, rows)).to(device)
        ours, theirs = Scores(rows, n, device), Scores(rows, n, device)
        if device == "cpu":  # scratch memory is made for CUDA alone
            ours.tops, ours.masses = torch.zeros((2, rows, 8))
            ours.ahead = torch.zeros((rows, 8), dtype=torch.int32)
            ours.keys = torch.zeros((rows, 8, n), dtype=torch.int64)
        logprobs_kernels.score(logits, tokens, ours)
        torch_score(logits, tokens, theirs)
        assert torch.equal(ours.found.ranks, theirs.found.ranks)
        assert torch.equal(ours.found.top_ids, theirs.found.top_ids)
        close = {"rtol": 1e-5, "atol": 1e-4}
        torch.testing.assert_close(ours.found.chosen, theirs.found.chosen, **close)
        torch.testing.assert_close(ours.found.top, theirs.found.top, **close)
