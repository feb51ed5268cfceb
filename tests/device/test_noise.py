"""Laws of the keyed noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from overdrive.device.noise import NOISE_BOUND, gumbel, keyed_hash, keyed_noise
from tests.device.sampling_oracle import fmix32, oracle_noise

EULER = 0.5772156649015329


def noise_of(seed: int, position: int, ids: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return keyed_noise(torch.tensor(seed), torch.tensor(position), ids, dtype)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**20))
def test_noise_is_the_documented_function(seed: int, position: int, token: int) -> None:
    got = noise_of(seed, position, torch.tensor(token)).item()
    assert got == pytest.approx(oracle_noise(seed, position, token), rel=1e-12)


def test_noise_is_standard_gumbel() -> None:
    noise = noise_of(5, 100, torch.arange(200_000))
    assert abs(noise.mean().item() - EULER) < 0.02
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.03
    uniform = torch.exp(-torch.exp(-noise))
    observed = torch.histc(uniform, bins=50, min=0, max=1).numpy()
    assert ((observed - 4000) ** 2 / 4000).sum() < 86  # chi-square, 49 degrees of freedom, p = 0.001


@pytest.mark.parametrize("shift", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1 << 32, 0, 0), (1, -1, 0), (0, 1, -1)])
def test_neighbouring_keys_are_uncorrelated(shift: tuple[int, int, int]) -> None:
    base = torch.arange(100_000)
    seed, position, token = shift
    one = keyed_noise(torch.tensor(9), base + 1, base % 997, torch.float64)
    two = keyed_noise(torch.tensor(9 + seed), base + 1 + position, base % 997 + token, torch.float64)
    assert abs(np.corrcoef(one.numpy(), two.numpy())[0, 1]) < 0.015


def test_every_input_bit_flips_half_of_the_output_bits() -> None:
    random = np.random.default_rng(0)
    seed = torch.from_numpy(random.integers(-(2**63), 2**63 - 1, 4000))
    position = torch.from_numpy(random.integers(0, 2**30, 4000))
    token = torch.from_numpy(random.integers(0, 2**17, 4000))
    h = keyed_hash(seed, position, token)
    others = [keyed_hash(seed ^ (1 << bit), position, token) for bit in range(63)]
    others += [keyed_hash(seed, position ^ (1 << bit), token) for bit in range(30)]
    others += [keyed_hash(seed, position, token ^ (1 << bit)) for bit in range(17)]
    for other in others:
        flipped = np.unpackbits((h ^ other).numpy().astype(np.uint32).view(np.uint8)).mean()
        assert abs(flipped - 0.5) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_hashes_never_win_by_rounding(dtype: torch.dtype) -> None:
    ends = torch.cat([torch.arange(512), torch.arange(2**32 - 512, 2**32)])
    noise = gumbel(ends, dtype)
    assert not noise.isnan().any()
    assert not (noise == math.inf).any()
    assert noise.max() < NOISE_BOUND
    assert noise[0] == noise.max()
    assert (noise[512:] < -2.5).all()


def test_ids_of_one_position_have_distinct_hashes() -> None:
    h = keyed_hash(torch.tensor(3), torch.tensor(4), torch.arange(150_000))
    assert len(h.unique()) == 150_000
    assert fmix32(1) == 0x514E28B7  # the published finaliser
