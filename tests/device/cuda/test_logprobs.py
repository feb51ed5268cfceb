"""The kernels' log-probabilities are the reference's: in Triton's interpreter, and on CUDA."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from overdrive.device.logprobs import logprobs
from tests.device.cuda.devices import DEVICES
from tests.device.sampling_batches import random_logits


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [0, 1, 20])
def test_kernels(n: int, device: str) -> None:
    pytest.importorskip("triton")
    from overdrive.device.cuda import logprobs_kernels

    random = np.random.default_rng(n)
    for rows, vocab in ((3, 15), (4, 1024), (3, 2500)) if device == "cpu" else ((1, 15), (64, 5003), (40, 128_256)):
        logits = random_logits(random, rows, vocab, torch.float32).to(device)
        tokens = torch.from_numpy(random.integers(0, vocab, rows)).to(device)
        ours, theirs = logprobs_kernels.logprobs(logits, tokens, n), logprobs(logits, tokens, n)
        assert torch.equal(ours.ranks, theirs.ranks)
        assert torch.equal(ours.top_ids, theirs.top_ids)
        for found, expected in ((ours.chosen, theirs.chosen), (ours.top, theirs.top)):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
