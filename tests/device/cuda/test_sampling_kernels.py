"""The sampling kernels draw what the reference draws, but for near-ties: in Triton's interpreter, and on CUDA."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from overdrive.device import noise as noise_reference
from overdrive.device.cuda.sampling import Scratch
from overdrive.device.cuda.sampling_state import LEVELS, StaticSamplingState, rules_of, torch_absorb
from overdrive.device.sampling import Layout, Masks, sample
from overdrive.types import Admission, SamplingParams
from tests.device.cuda.devices import DEVICES
from tests.device.sampling_batches import Batch, margins, random_batch, random_params

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from overdrive.device.cuda import sampling_kernels  # noqa: E402
from overdrive.device.cuda.noise_kernels import gumbel, keyed_hash, position_key  # noqa: E402


def params_for(rules: str, random: np.random.Generator, vocab: int) -> SamplingParams:
    while True:
        params = random_params(random, vocab)
        if LEVELS.index(rules_of(params)) <= LEVELS.index(rules):  # type: ignore[arg-type]
            return params


def static_batch(rules: str, random: np.random.Generator, rows: int, vocab: int) -> Batch:
    batch = random_batch(random, rows, vocab, torch.float32)
    slots = len(batch.state.top_p)
    state = StaticSamplingState(slots, vocab, torch.float32)
    state.admit_all(
        [
            Admission("r", i, tuple(random.integers(0, vocab, 12).tolist()), 5, 0, params_for(rules, random, vocab))
            for i in range(slots)
        ]
    )
    return batch._replace(state=state, masks=batch.masks if rules == "full" else None)


def on(batch: Batch, device: str) -> Batch:
    """The batch's tensors on a device."""
    for name, value in vars(batch.state).items():
        if isinstance(value, Tensor):
            setattr(batch.state, name, value.to(device))
    for name, value in vars(batch.state.counts).items():
        if isinstance(value, Tensor):
            setattr(batch.state.counts, name, value.to(device))
    layout = Layout(*(getattr(batch.layout, name).to(device) for name in Layout.__slots__))
    masks = batch.masks and Masks(batch.masks.bits.to(device), batch.masks.index.to(device))
    return batch._replace(logits=batch.logits.to(device), layout=layout, drafts=batch.drafts.to(device), masks=masks)


def drawn(batch: Batch, rules: str, scratch: Scratch, ids: Tensor | None = None) -> Tensor:
    logits, layout, drafts, state, masks = batch
    out = torch.full((len(logits), 2), -1, device=logits.device)[:, 1]  # a column, as drafts are drawn into
    sampling_kernels.draw(logits, layout, drafts, state, rules, ids, out, masks, scratch)  # type: ignore[arg-type]
    return out


def assert_equal_but_for_near_ties(batch: Batch, tokens: Tensor, expected: Tensor) -> int:
    apart = (tokens != expected).nonzero().squeeze(1)
    near = margins(batch, tokens, expected)[apart]
    assert (near < 1e-4 * (1 + batch.logits[apart].nan_to_num(0, 0, 0).abs().amax(1))).all()
    return len(apart)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rules", LEVELS)
def test_draws(rules: str, device: str) -> None:
    random = np.random.default_rng(LEVELS.index(rules))  # type: ignore[arg-type]
    total = differ = 0
    for vocab in (31, 1500) if device == "cpu" else (31, 300, 5003, 50_000, 128_256):
        for _ in range(3 if device == "cpu" else 8):
            batch = on(static_batch(rules, random, 6 if device == "cpu" else 40, vocab), device)
            scratch = Scratch(len(batch.logits), vocab, torch.device(device))
            tokens, expected = drawn(batch, rules, scratch), sample(*batch)
            differ += assert_equal_but_for_near_ties(batch, tokens, expected)
            total += len(tokens)
    print(f"near-ties: {differ} of {total}")
    assert differ <= total // 100


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_taken_in_slices(device: str) -> None:
    batch = on(static_batch("full", np.random.default_rng(7), 6, 200), device)
    few = Scratch(len(batch.logits), 200, torch.device(device))
    few.adjusted = few.adjusted[:4]
    assert torch.equal(drawn(batch, "full", few), drawn(batch, "full", Scratch(99, 200, torch.device(device))))


@pytest.mark.parametrize("device", DEVICES)
def test_the_largest_are_found_whether_few_or_many_are_near_them(device: str) -> None:
    """Rows of many blocks: k within a block and beyond, logits apart, equal, or all in a few values."""
    vocab, rows = 500, 6
    random = torch.Generator().manual_seed(0)
    apart = torch.randn((rows, vocab), generator=random) * 3
    for k in (1, 20, 100):
        state = StaticSamplingState(1, vocab, torch.float32)
        state.admit(0, SamplingParams(max_tokens=9, top_k=k, top_p=0.7), [0], 1)
        index = torch.arange(rows)
        layout = Layout(index * 0, index * 0, index * 0, index)
        for logits in (apart, apart.round(), torch.zeros((rows, vocab))):
            batch = on(Batch(logits, layout, torch.zeros((1, 0), dtype=torch.int64), state, None), device)
            scratch = Scratch(rows, vocab, torch.device(device))
            scratch.near = scratch.near[:, :64].contiguous()
            assert_equal_but_for_near_ties(batch, drawn(batch, "full", scratch), sample(*batch))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rules", LEVELS)
def test_a_smaller_vocabulary(rules: str, device: str) -> None:
    random = np.random.default_rng(5)
    batch = on(static_batch(rules, random, 6, 300), device)._replace(masks=None)
    ids = torch.from_numpy(np.sort(random.permutation(300)[:90])).to(device)
    few = batch.logits.nan_to_num(0, 50, -50)
    others = torch.ones(300, dtype=torch.bool, device=device).scatter(0, ids, False)
    whole = batch._replace(logits=few.masked_fill(others, -torch.inf))
    tokens = drawn(batch._replace(logits=few[:, ids]), rules, Scratch(24, 90, torch.device(device)), ids)
    assert_equal_but_for_near_ties(whole, tokens, sample(*whole))


@pytest.mark.parametrize("device", DEVICES)
def test_filters_end_at_lower_ids(device: str) -> None:
    """Logits of few values, where every boundary runs through equals."""
    vocab, n = 150, 12 if device == "cpu" else 4000
    for params in ({"top_k": 7}, {"top_p": 0.5}, {"top_k": 20, "top_p": 0.5}, {"min_p": 0.9}):
        state = StaticSamplingState(1, vocab, torch.float32)
        state.admit(0, SamplingParams(max_tokens=9, **params), [0], 1)
        index = torch.arange(n)
        layout = Layout(index * 0, index * 0, index * 0, index)
        logits = (torch.arange(vocab) % 2).float().expand(n, -1) * 40
        batch = on(Batch(logits, layout, torch.zeros((1, 0), dtype=torch.int64), state, None), device)
        tokens = drawn(batch, "full", Scratch(n, vocab, torch.device(device)))
        assert torch.equal(tokens, sample(*batch))


@triton.jit
def noise(seeds, positions, ids, hashes, noises, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    a, b = position_key(tl.load(seeds + at), tl.load(positions + at))
    h = keyed_hash(a, b, tl.load(ids + at))
    tl.store(hashes + at, h.to(tl.int64))
    tl.store(noises + at, gumbel(h))


@pytest.mark.parametrize("device", DEVICES)
def test_noise(device: str) -> None:
    """Every hash is the reference's, and the noise close to it, at both ends above all."""
    random = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(2**63), 2**63 - 1, (4096,), generator=random).to(device)
    positions, ids = (torch.randint(0, 2**20, (4096,), generator=random).to(device) for _ in range(2))
    hashes, noises = torch.zeros_like(seeds), torch.zeros(4096, device=device)
    noise[(1,)](seeds, positions, ids, hashes, noises, SIZE=4096)
    assert torch.equal(hashes, noise_reference.keyed_hash(seeds, positions, ids))
    exact = noise_reference.keyed_noise(seeds, positions, ids, torch.float64)
    assert ((noises - exact).abs() < 2e-5 * (1 + exact.abs())).all()


@pytest.mark.parametrize("device", DEVICES)
def test_absorb(device: str) -> None:
    random = np.random.default_rng(3)
    batch = on(static_batch("full", random, 6, 50), device)
    table = batch.state.counts
    slots, counts = torch.tensor([0, 5, 2, 8], device=device), torch.tensor([0, 1, 3, 2], device=device)
    tokens = torch.randint(0, 5, (4, 3), device=device)
    before = table.output.clone()
    torch_absorb(table, slots, tokens, counts)
    expected = table.output.clone()
    table.output.copy_(before)
    sampling_kernels.absorb(table, slots, tokens, counts)
    assert torch.equal(table.output, expected)
