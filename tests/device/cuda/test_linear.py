"""What products over quantised weights compute is what plain torch computes with the weights that the codes mean."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.device.cuda import linear
from overdrive.device.cuda.linear import Fp8Linear, Int4Linear, Int8Linear, ScoringLinear
from overdrive.errors import OverdriveError
from tests.device.cuda.test_ops import sizes

SMALL = [("cpu", 1, 48, 64), ("cpu", 5, 40, 96), ("cpu", 20, 64, 160)]
REAL = [("cuda", rows, *shape) for rows in (1, 40, 300) for shape in ((960, 576), (4096, 14336))]
NOISE = {Fp8Linear: 0.06, Int8Linear: 0.012, Int4Linear: 0.12}
"""Relative error of a product by the weights' codes, and by the inputs' where they are quantised too."""


def weights(outputs: int, inputs: int, place: str) -> tuple[Tensor, Tensor]:
    weight = torch.randn(outputs, inputs, device=place) * inputs**-0.5
    return weight.bfloat16(), torch.randn(outputs, device=place).bfloat16()


@pytest.mark.parametrize("kind", [Fp8Linear, Int8Linear, Int4Linear])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_quantised_product_is_near_the_exact_one(kind: type, rows: int) -> None:
    weight, bias = weights(48, 160, "cpu")
    x = torch.randn(rows, 160).bfloat16()
    exact = F.linear(x.float(), weight.float(), bias.float())
    y = kind(weight, bias)(x)
    assert y.dtype == torch.bfloat16 and y.shape == (rows, 48)
    assert (y.float() - exact).norm() < NOISE[kind] * exact.norm()
    assert torch.equal(kind(weight)(x) + bias, y)


@pytest.mark.parametrize(("kind", "outputs", "inputs"), [(Fp8Linear, 24, 64), (Fp8Linear, 32, 40), (Int4Linear, 8, 48)])
def test_widths_that_a_product_does_not_take_are_named(kind: type, outputs: int, inputs: int) -> None:
    with pytest.raises(OverdriveError, match="divisible by") as error:
        kind(*weights(outputs, inputs, "cpu"))
    assert "\n" not in str(error.value)


def test_scores_are_float32_and_rounded_where_the_library_has_no_wider_product() -> None:
    weight, _ = weights(50, 64, "cpu")
    x = torch.randn(3, 64).bfloat16()
    scores = ScoringLinear(weight)(x)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, F.linear(x, weight).float())


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_scores_of_a_gpu_are_not_rounded(rows: int, dtype: torch.dtype) -> None:
    weight = (torch.randn(1000, 512, device="cuda") * 0.1).to(dtype)
    x = torch.randn(rows, 512, device="cuda").to(dtype)
    scores = ScoringLinear(weight)(x)
    exact = x.double() @ weight.double().t()
    assert scores.dtype == torch.float32
    assert (scores - exact).abs().max() < 1e-4 < (F.linear(x, weight).float() - exact).abs().max()


@pytest.mark.parametrize(("place", "rows", "outputs", "inputs"), sizes(SMALL, REAL))
def test_int8_kernel_multiplies_by_what_the_codes_mean(place: str, rows: int, outputs: int, inputs: int) -> None:
    pytest.importorskip("triton")
    codes = torch.randint(-127, 128, (outputs, inputs), device=place).to(torch.int8)
    scales = torch.rand(outputs, device=place) * 0.01 / inputs**0.5
    x = torch.randn(rows, 2 * inputs, device=place).half()[:, :inputs]
    expected = x.float() @ (codes.float() * scales[:, None]).t()
    found = linear.multiply_int8(x, codes, scales).float()
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("place", "rows", "outputs", "inputs"), sizes(SMALL, REAL))
def test_int4_kernel_multiplies_by_what_the_codes_mean(place: str, rows: int, outputs: int, inputs: int) -> None:
    pytest.importorskip("triton")
    weight, _ = weights(outputs, inputs, place)
    group = next(group for group in linear.INT4_GROUPS if inputs % group == 0)
    codes, scales, least = linear.quantise_int4(weight, group)
    x = torch.randn(rows, 2 * inputs, device=place).half()[:, :inputs]
    expected = x.float() @ linear.dequantise_int4(codes, scales, least, group).half().float().t()
    found = linear.multiply_int4(x, codes, scales, least, group).float()
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=4e-3)


@pytest.mark.cuda
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (6144, 4096), (4096, 14336)])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_float8_on_a_gpu_is_what_torch_computes_from_the_same_codes(rows: int, outputs: int, inputs: int) -> None:
    weight, bias = weights(outputs, inputs, "cuda")
    x = torch.randn(rows, inputs, device="cuda").bfloat16()
    expected = Fp8Linear(weight.cpu(), bias.cpu())(x.cpu()).float()
    found = Fp8Linear(weight, bias)(x).float().cpu()
    assert (found - expected).norm() < 0.01 * expected.norm()
    codes, scales = linear.quantise_fp8(x)
    found_codes, found_scales = linear._quantise_fp8_on_device(x)
    torch.testing.assert_close(found_scales, scales, rtol=1e-6, atol=0)
    assert (found_codes.float() != codes.float()).float().mean() < 0.01
