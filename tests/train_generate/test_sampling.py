"""Laws of the batched draw: frequencies are the softmax's, cut to the nucleus."""

from __future__ import annotations

import torch

from overdrive.train.generate import sampling
from overdrive.train.generate.sampling import draw, nucleus_floor, top_values

ROWS = 40_000


def frequencies(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    rows = logits.expand(ROWS, -1).clone()
    drawn = draw(rows, torch.full((ROWS,), temperature), torch.full((ROWS,), top_p), generator)
    return torch.bincount(drawn, minlength=len(logits)) / ROWS


def nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """By the definition: the fewest best tokens that reach top_p, renormalised."""
    kept, total = torch.zeros_like(probabilities), 0.0
    for token in probabilities.argsort(descending=True).tolist():
        if total >= top_p:
            break
        kept[token] = probabilities[token]
        total += float(probabilities[token])
    return kept / kept.sum()


def test_frequencies_are_the_softmax_cut_to_the_nucleus():
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 2
    for temperature, top_p in ((1.0, 1.0), (0.6, 1.0), (1.0, 0.7), (0.8, 0.9)):
        wanted = nucleus((logits / temperature).softmax(0), top_p)
        found = frequencies(logits, temperature, top_p)
        assert (found - wanted).abs().max() < 0.012
        assert not found[wanted == 0].any()


def test_temperature_zero_is_the_argmax_whatever_top_p():
    logits = torch.randn(12, generator=torch.Generator().manual_seed(4))
    assert frequencies(logits, 0.0, 0.1)[logits.argmax()] == 1.0


def test_rows_keep_their_own_temperature_and_top_p():
    logits = torch.zeros((4000, 10))
    logits[:, 3] = 1.0
    temperature, top_p = torch.tensor([0.0, 1.0] * 2000), torch.tensor([1.0, 1.0, 1.0, 0.2] * 1000)
    drawn = draw(logits, temperature, top_p, torch.Generator().manual_seed(0))
    assert (drawn[0::2] == 3).all() and (drawn[3::4] == 3).all() and len(drawn[1::4].unique()) == 10


def test_the_best_values_by_chunks_are_those_of_a_plain_search():
    x = torch.randn((5, 64 * 128 * 3 + 17), generator=torch.Generator().manual_seed(1))
    x[:, 1000:1200] += 5.0  # a crowd in two chunks
    assert torch.equal(top_values(x, 64), x.topk(64, 1).values)


def test_a_nucleus_wider_than_the_candidates_is_left_uncut(monkeypatch):
    monkeypatch.setattr(sampling, "CANDIDATES", 4)
    flat, steep = torch.zeros(100), torch.linspace(500, -500, 100)
    floors = nucleus_floor(torch.stack((flat, steep)), torch.tensor([0.9, 0.9]))
    assert floors[0] == -torch.inf and floors[1] == 500
