"""A toy target, a pure function of the prefix, and the shortest loop that speculates on it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from overdrive.device.sampling import Layout, Sampler, SamplingState, sample
from overdrive.device.verify import verify
from overdrive.types import SamplingParams
from tests.device.sampling_oracle import oracle_draw

VOCAB = 24


def toy_logits(prefix: Sequence[int]) -> np.ndarray:
    """[VOCAB] float64; depends on the last three tokens, so that texts repeat themselves now and then."""
    random = np.random.default_rng(zlib.crc32(bytes(prefix[-3:])))
    return random.normal(size=VOCAB) * 2.5


def naive(params: SamplingParams, prompt: Sequence[int]) -> list[int]:
    """The output, one token at a time, by the oracle."""
    output: list[int] = []
    while len(output) < params.max_tokens:
        output.append(oracle_draw(toy_logits([*prompt, *output]).tolist(), params, prompt, output))
    return output


def speculative(
    params: Sequence[SamplingParams],
    prompts: Sequence[Sequence[int]],
    propose: Callable[[Sequence[int], int], list[int]],
    random: np.random.Generator,
    sampler: Sampler = sample,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[list[int]], int]:
    """Outputs of all requests, K random in every step, and how many drafts were accepted.

    propose(text, width) gives any number of drafts up to `width`.
    """
    state = SamplingState(len(params), VOCAB, dtype)
    for slot, (request, prompt) in enumerate(zip(params, prompts, strict=True)):
        state.admit(slot, request, prompt, len(prompt))
    outputs: list[list[int]] = [[] for _ in params]
    accepted = 0
    while True:
        slots = [s for s, out in enumerate(outputs) if len(out) < params[s].max_tokens]
        if not slots:
            return [out[: p.max_tokens] for out, p in zip(outputs, params, strict=True)], accepted
        slots = [s for s in slots if random.random() < 0.8] or slots[:1]
        width = int(random.choice([0, 1, 3, 5]))
        drafts = torch.full((len(slots), width), VOCAB + 7)  # garbage beyond n_drafts
        n_drafts = torch.zeros(len(slots), dtype=torch.int64)
        entries, logits = [], []
        for row, slot in enumerate(slots):
            text = [*prompts[slot], *outputs[slot]]
            guess = propose(text, width)[:width]
            drafts[row, : len(guess)] = torch.tensor(guess, dtype=torch.int64)
            n_drafts[row] = len(guess)
            for depth in range(len(guess) + 1):
                entries.append((row, slot, depth, len(text) + depth))
                logits.append(toy_logits([*text, *guess[:depth]]))
        layout = Layout(*torch.tensor(entries).T.contiguous())
        verified = verify(torch.tensor(np.array(logits), dtype=dtype), layout, drafts, n_drafts, state, sampler=sampler)
        state.absorb(torch.tensor(slots), verified.tokens, verified.counts)
        for row, slot in enumerate(slots):
            outputs[slot] += verified.tokens[row, : verified.counts[row]].tolist()
        accepted += int((verified.counts - 1).sum())
