"""Laws of the packed linear: its sums are those of the dequantised weights, and a row never feels its neighbours."""

from __future__ import annotations

from itertools import pairwise

import gguf
import numpy as np
import pytest
import torch

from overdrive.device.cpu.dot_kernels import LARGEST
from overdrive.device.cpu.lanes import byte_dots
from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.packing import Packed, Shelf, pack_float32, pack_gguf, pack_int8
from overdrive.device.cpu.team import Team
from overdrive.errors import OverdriveError

QUADS = [f"{form}/quads" for form in ("int8", "q4_0", "q4_1", "q5_1", "q8_0")] if byte_dots() else []
FORMS = ["float32", "int8", "q4_0", "q4_1", "q5_1", "q8_0", *QUADS]
ROWS = [*range(1, 34), 48, 61, 128, 200]


def error(form: str) -> float:
    """Of a sum of a hundred products of normal numbers: activations of 16 bits are off by up to 5e-5 each."""
    return 2e-3 if form.endswith("quads") else 2e-5


@pytest.fixture(scope="module")
def kernels() -> LinearKernels:
    return LinearKernels(Team(2))


def packed_and_weight(name: str, outputs: int, inputs: int) -> tuple[Packed, torch.Tensor]:
    """A random matrix in some format, and the float32 weights it stands for."""
    form, _, order = name.partition("/")
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs + inputs))
    if form == "float32":
        return pack_float32(weight), weight
    if form == "int8":
        scale = weight.abs().amax(1, keepdim=True) / 127
        return pack_int8(weight, bool(order)), (weight / scale).round() * scale
    kind = gguf.GGMLQuantizationType[form.upper()]
    raw = gguf.quantize(weight.numpy(), kind)
    return pack_gguf(raw, kind, outputs, inputs, bool(order)), torch.from_numpy(gguf.dequantize(raw, kind))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [5, 64, 200])
def test_product_is_that_of_the_dequantised_weights(kernels: LinearKernels, form: str, outputs: int) -> None:
    packed, weight = packed_and_weight(form, outputs, 96)
    bias = torch.randn(outputs)
    x = torch.randn(40, 96)
    for linear, added in ((PackedLinear(kernels, packed), 0), (PackedLinear(kernels, packed, bias), bias)):
        expected = x.double() @ weight.double().T + added
        for rows in (1, 3, 7, 40):
            torch.testing.assert_close(linear(x[:rows]).double(), expected[:rows], atol=error(form), rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_does_not_depend_on_the_number_of_rows(kernels: LinearKernels, form: str) -> None:
    packed, _ = packed_and_weight(form, 150, 160)
    linear = PackedLinear(kernels, packed, torch.randn(150))
    x = torch.randn(max(ROWS), 160)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in ROWS:
        assert torch.equal(linear(x[:rows]), alone[:rows]), rows


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [3, 8, 30])
def test_a_row_does_not_depend_on_its_neighbours(kernels: LinearKernels, rows: int, form: str) -> None:
    packed, _ = packed_and_weight(form, 64, 64)
    linear = PackedLinear(kernels, packed)
    x, others = torch.randn(rows, 64), torch.randn(rows, 64) * 1e20
    others[1] = x[1]
    assert torch.equal(linear(others)[1], linear(x)[1])


@pytest.mark.parametrize("form", ["q8_0", *QUADS])
@pytest.mark.parametrize("rows", [1, 30])
def test_a_result_does_not_depend_on_the_threads(kernels: LinearKernels, rows: int, form: str) -> None:
    packed, _ = packed_and_weight(form, 300, 64)
    x = torch.randn(rows, 64)
    expected = PackedLinear(kernels, packed)(x)
    for threads in (1, 3):
        assert torch.equal(PackedLinear(LinearKernels(Team(threads)), packed)(x), expected)


@pytest.mark.parametrize("form", FORMS)
def test_looked_up_rows_are_the_weights(kernels: LinearKernels, form: str) -> None:
    packed, weight = packed_and_weight(form, 70, 64)
    index = torch.tensor([0, 69, 17, 17, 33])
    assert torch.equal(PackedLinear(kernels, packed).rows(index), weight[index])


@pytest.mark.skipif(not byte_dots(), reason="the machine does not multiply bytes")
@pytest.mark.parametrize("outputs", [40, 1100])
def test_whole_numbers_are_multiplied_exactly(kernels: LinearKernels, outputs: int) -> None:
    """The largest number of each block is its largest digit pair, so nothing is rounded on the way to the sums."""
    numbers = torch.randint(-LARGEST, LARGEST + 1, (9, 96), generator=torch.Generator().manual_seed(0)).float()
    numbers[:, ::32] = LARGEST
    numbers[4] = 0
    codes = torch.randint(-127, 128, (outputs, 96), generator=torch.Generator().manual_seed(1)).float()
    codes[:, 0] = 127
    linear = PackedLinear(kernels, pack_int8(codes / 64, True))  # scale 2^-6
    parts = (x.view(len(x), 3, 32).double() for x in (numbers, codes))
    blocks = torch.einsum("rbi,obi->rbo", *parts).float()  # each rounded once, then added in order
    expected = ((blocks[:, 0] + blocks[:, 1]) + blocks[:, 2]) / 64
    assert torch.equal(linear(numbers), expected)


@pytest.mark.parametrize("magnitude", [0.0, 1e-40, 1e-30, 1e-20, 1e30])
@pytest.mark.parametrize("form", FORMS)
def test_activations_of_any_magnitude(kernels: LinearKernels, form: str, magnitude: float) -> None:
    packed, weight = packed_and_weight(form, 64, 64)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) * magnitude
    expected = x.double() @ weight.double().T
    atol = error(form) * magnitude + 1e-28
    torch.testing.assert_close(PackedLinear(kernels, packed)(x).double(), expected, atol=atol, rtol=1e-5)


def test_matrices_lie_behind_one_another(kernels: LinearKernels) -> None:
    shelf = Shelf()
    made = [packed_and_weight("int8", outputs, 64)[0] for outputs in (5, 64, 200)]
    placed = [shelf.put(packed) for packed in made]
    for before, after in pairwise(placed):
        assert after.panels.ctypes.data == before.panels.ctypes.data + before.panels.nbytes
        assert before.panels.ctypes.data % 64 == 0
    assert all(np.array_equal(a.panels, b.panels) for a, b in zip(made, placed, strict=True))


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
