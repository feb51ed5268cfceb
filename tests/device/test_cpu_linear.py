"""Laws of the packed linear: its sums are those of the dequantised weights, and a row never feels its neighbours."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.packing import Packed, pack_float32, pack_gguf, pack_int8
from overdrive.device.cpu.team import Team
from overdrive.errors import OverdriveError

FORMS = ["float32", "int8", "q4_0", "q4_1", "q8_0"]
ROWS = [*range(1, 34), 48, 61, 128, 200]


@pytest.fixture(scope="module")
def kernels() -> LinearKernels:
    return LinearKernels(Team(2))


def packed_and_weight(form: str, outputs: int, inputs: int) -> tuple[Packed, torch.Tensor]:
    """A random matrix in some format, and the float32 weights it stands for."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs + inputs))
    if form == "float32":
        return pack_float32(weight), weight
    if form == "int8":
        scale = weight.abs().amax(1, keepdim=True) / 127
        return pack_int8(weight), (weight / scale).round() * scale
    kind = gguf.GGMLQuantizationType[form.upper()]
    raw = gguf.quantize(weight.numpy(), kind)
    return pack_gguf(raw, kind, outputs, inputs), torch.from_numpy(gguf.dequantize(raw, kind))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [5, 64, 200])
def test_product_is_that_of_the_dequantised_weights(kernels: LinearKernels, form: str, outputs: int) -> None:
    packed, weight = packed_and_weight(form, outputs, 96)
    bias = torch.randn(outputs)
    x = torch.randn(40, 96)
    for linear, added in ((PackedLinear(kernels, packed), 0), (PackedLinear(kernels, packed, bias), bias)):
        expected = x.double() @ weight.double().T + added
        for rows in (1, 3, 7, 40):
            torch.testing.assert_close(linear(x[:rows]).double(), expected[:rows], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_does_not_depend_on_the_number_of_rows(kernels: LinearKernels, form: str) -> None:
    packed, _ = packed_and_weight(form, 150, 160)
    linear = PackedLinear(kernels, packed, torch.randn(150))
    x = torch.randn(max(ROWS), 160)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in ROWS:
        assert torch.equal(linear(x[:rows]), alone[:rows]), rows


@pytest.mark.parametrize("rows", [3, 8, 30])
def test_a_row_does_not_depend_on_its_neighbours(kernels: LinearKernels, rows: int) -> None:
    packed, _ = packed_and_weight("q4_1", 64, 64)
    linear = PackedLinear(kernels, packed)
    x, others = torch.randn(rows, 64), torch.randn(rows, 64) * 1e20
    others[1] = x[1]
    assert torch.equal(linear(others)[1], linear(x)[1])


@pytest.mark.parametrize("rows", [1, 30])
def test_a_result_does_not_depend_on_the_threads(kernels: LinearKernels, rows: int) -> None:
    packed, _ = packed_and_weight("q8_0", 300, 64)
    x = torch.randn(rows, 64)
    expected = PackedLinear(kernels, packed)(x)
    for threads in (1, 3):
        assert torch.equal(PackedLinear(LinearKernels(Team(threads)), packed)(x), expected)


@pytest.mark.parametrize("form", FORMS)
def test_looked_up_rows_are_the_weights(kernels: LinearKernels, form: str) -> None:
    packed, weight = packed_and_weight(form, 70, 64)
    index = torch.tensor([0, 69, 17, 17, 33])
    assert torch.equal(PackedLinear(kernels, packed).rows(index), weight[index])


def test_activations_may_be_a_view(kernels: LinearKernels) -> None:
    packed, _ = packed_and_weight("int8", 32, 64)
    linear = PackedLinear(kernels, packed)
    for rows in (2, 20):
        wide = torch.randn(rows, 200)
        assert torch.equal(linear(wide[:, 40:104]), linear(wide[:, 40:104].contiguous()))
        assert torch.equal(linear(wide.T[:64].T), linear(wide[:, :64].contiguous()))


def test_other_gguf_types_are_dequantised(kernels: LinearKernels) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    raw = gguf.quantize(weight, gguf.GGMLQuantizationType.TQ2_0)
    linear = PackedLinear(kernels, pack_gguf(raw, gguf.GGMLQuantizationType.TQ2_0, 64, 256))
    expected = torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType.TQ2_0))
    assert torch.equal(linear.rows(torch.arange(64)), expected)


def test_a_wrong_input_is_named(kernels: LinearKernels) -> None:
    packed, _ = packed_and_weight("int8", 32, 64)
    with pytest.raises(OverdriveError, match=r"\[T, 64\] float32"):
        PackedLinear(kernels, packed)(torch.randn(2, 32))
    with pytest.raises(OverdriveError, match="even number"):
        pack_int8(torch.randn(4, 3))
