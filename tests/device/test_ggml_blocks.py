"""Laws of ggml's block types: taken apart and packed, they mean what the gguf package says they mean."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from overdrive.device.cpu.ggml_blocks import LAYOUTS
from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.packing import pack_gguf
from overdrive.device.cpu.team import Team

HALVES = {Kind.Q4_1: (0, 2), Kind.Q5_1: (0, 2), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}


def random_blocks(kind: Kind, outputs: int, inputs: int) -> np.ndarray:
    """Every bit random but the half-precision factors, which are of ordinary size; [outputs, bytes of a row]."""
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    blocks = rng.integers(0, 256, (outputs * inputs // per_block, size), dtype=np.uint8)
    for start in HALVES.get(kind, (0,)):
        factors = rng.uniform(-0.02, 0.02, (len(blocks), 1)).astype(np.float16)
        blocks[:, start : start + 2] = factors.view(np.uint8)
    return blocks.reshape(outputs, -1)


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.name)
def test_blocks_mean_what_the_gguf_package_says(kind: Kind) -> None:
    raw = random_blocks(kind, 40, 512)
    weight = gguf.dequantize(raw, kind)
    found = pack_gguf(raw, kind, 40, 512).rows(np.arange(40))
    # The last bit may differ where a minimum was rounded before it was added.
    np.testing.assert_allclose(found, weight, rtol=0, atol=2e-7 * np.abs(weight).max())


@pytest.mark.parametrize("kind", [Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K], ids=lambda kind: kind.name)
def test_products_are_those_of_the_dequantised_weights_row_by_row(kind: Kind) -> None:
    raw = random_blocks(kind, 72, 512)
    weight = torch.from_numpy(gguf.dequantize(raw, kind)).double()
    linear = PackedLinear(LinearKernels(Team(2)), pack_gguf(raw, kind, 72, 512))
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([linear(row[None]) for row in x])
    scale = (x.double().abs() @ weight.abs().T).max()
    assert ((alone - x.double() @ weight.T).abs().max() / scale) < 1e-5
    for rows in (2, 4, 7, 20, 40):
        assert torch.equal(linear(x[:rows]), alone[:rows])
