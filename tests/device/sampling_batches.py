"""Random batches that mix every sampling rule, for comparing samplers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from overdrive.device.noise import keyed_noise
from overdrive.device.sampling import Layout, Masks, SamplingState, adjust
from overdrive.types import SamplingParams


class Batch(NamedTuple):
    """Arguments of a sampler."""

    logits: Tensor
    layout: Layout
    drafts: Tensor
    state: SamplingState
    masks: Masks | None


def random_params(random: np.random.Generator, vocab: int) -> SamplingParams:
    """Each rule is off in about half of the requests."""

    def maybe(value: float, off: float) -> float:
        return float(value) if random.random() < 0.5 else off

    penalised = random.random() < 0.4
    return SamplingParams(
        max_tokens=50,
        min_tokens=int(random.integers(0, 12)),
        temperature=random.choice([0.0, 0.3, 0.8, 1.0, 1.7, 5.0]),
        top_k=int(maybe(random.integers(1, vocab + 2), 0)),
        top_p=maybe(random.choice([0.05, 0.3, 0.5, 0.9, 0.95, 0.999]), 1.0),
        min_p=maybe(random.choice([0.001, 0.05, 0.3, 1.0]), 0.0),
        presence_penalty=maybe(random.uniform(-2, 2), 0.0) * penalised,
        frequency_penalty=maybe(random.uniform(-2, 2), 0.0) * penalised,
        repetition_penalty=random.uniform(0.5, 2.0) if penalised else 1.0,
        logit_bias=tuple((int(t), random.uniform(-100, 100)) for t in random.integers(0, vocab, random.integers(0, 4))),
        seed=int(random.integers(-(2**63), 2**63 - 1)),
        stop_token_ids=tuple(random.integers(0, vocab, random.integers(0, 4)).tolist()),
    )


def random_logits(random: np.random.Generator, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """Rows of many shapes: peaked, flat, full of ties, with NaN and infinities, hopeless."""
    logits = random.normal(size=(rows, vocab)) * random.choice([0.01, 1.0, 4.0, 30.0], (rows, 1))
    for row in logits:
        kind = random.integers(0, 8)
        if kind == 0:
            row[:] = row.round()
        elif kind == 1:
            row[random.random(vocab) < 0.3] = random.choice([np.nan, np.inf, -np.inf])
        elif kind == 2:
            row[:] = random.choice([0.0, np.nan, -np.inf])
        elif kind == 3:
            row[random.integers(0, vocab)] += 20
    return torch.from_numpy(logits).to(dtype)


def random_batch(random: np.random.Generator, rows: int, vocab: int, dtype: torch.dtype) -> Batch:
    """`rows` rows with up to 4 logit rows each, ragged, shuffled."""
    slots = random.permutation(rows + 3)[:rows]
    state = SamplingState(rows + 3, vocab, dtype)
    entries = []
    for row, slot in enumerate(slots):
        prompt_len, output_len = random.integers(1, 6), random.integers(0, 15)
        text = random.integers(0, vocab, prompt_len + output_len).tolist()
        state.admit(int(slot), random_params(random, vocab), text, int(prompt_len))
        entries += [(row, slot, depth, len(text) + depth) for depth in range(random.integers(1, 5))]
    random.shuffle(entries)
    layout = Layout(*torch.tensor(np.array(entries)).T.contiguous())
    drafts = torch.from_numpy(random.integers(0, min(vocab, 6), (rows, 3)))
    masks = None
    if random.random() < 0.5:
        bits = random.integers(-(2**31), 2**31, (5, -(-vocab // 32))).astype(np.int32)
        bits[1], bits[2] = 0, -1
        bits[3] *= random.random(bits.shape[1]) < 0.1  # hardly anything is left
        masks = Masks(torch.from_numpy(bits), torch.from_numpy(random.integers(-1, 5, len(entries))))
    return Batch(random_logits(random, len(entries), vocab, dtype), layout, drafts, state, masks)


def margins(batch: Batch, tokens: Tensor, others: Tensor) -> Tensor:
    """How far apart two tokens of each logit row stand, noise included. [N]"""
    adjusted = adjust(*batch)
    temperature = batch.state.temperature[batch.layout.slots].unsqueeze(1)
    two = torch.stack([tokens, others], dim=1)
    seeds, positions = batch.state.seed[batch.layout.slots].unsqueeze(1), batch.layout.positions.unsqueeze(1)
    noise = keyed_noise(seeds, positions, two, adjusted.dtype)
    hot = temperature > 0
    scores = adjusted.gather(1, two) / torch.where(hot, temperature, 1) + torch.where(hot, noise, 0)
    return (scores[:, 0] - scores[:, 1]).abs()
