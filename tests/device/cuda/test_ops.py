"""The fused element-wise operations are those of plain torch, in every type and whatever the strides.

Without a GPU the kernels run in Triton's interpreter, where TRITON_INTERPRET=1 and Triton are there; on one, at the
sizes of real models.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from overdrive.device.cuda.ops import CudaOps, divide, rope_tile, tile
from overdrive.errors import OverdriveError
from overdrive.model.ops import TorchOps

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
# One unit in the last place, where a sum was taken in another order.
CLOSE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-6}
SMALL = [("cpu", 1, 64), ("cpu", 3, 72), ("cpu", 5, 24)]
REAL = [("cuda", rows, width) for rows in (1, 33, 1000) for width in (576, 4096, 5120)]


def sizes(small: list[tuple], real: list[tuple]) -> list[object]:
    """Small sizes for the interpreter, real ones for a GPU."""
    absent = pytest.mark.skipif(not INTERPRETED, reason="needs a GPU, or Triton with TRITON_INTERPRET=1")
    return [pytest.param(*s, marks=absent) for s in small] + [pytest.param(*s, marks=pytest.mark.cuda) for s in real]


def typed_sizes(small: list[tuple], real: list[tuple]) -> list[object]:
    """With the type behind each: on a GPU, where every one has to be compiled, the most used for all sizes."""
    small = [(*size, dtype) for size in small for dtype in DTYPES]
    others = [(*size, dtype) for size in real[:2] for dtype in DTYPES[1:]]
    return sizes(small, [*((*size, DTYPES[0]) for size in real), *others])


def both(dtype: torch.dtype, place: str) -> tuple[CudaOps, TorchOps]:
    pytest.importorskip("triton")
    return CudaOps(dtype, torch.device(place)), TorchOps(dtype, place)


def draw(*shape: int, dtype: torch.dtype, place: str, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=place) * scale).to(dtype)


def columns(rows: int, width: int, dtype: torch.dtype, place: str) -> Tensor:
    """[rows, width] with room on both sides of every row."""
    return draw(rows, 3 * width, dtype=dtype, place=place)[:, width : 2 * width]


def assert_alike(found: Tensor, expected: Tensor) -> None:
    close = CLOSE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=close, atol=close)


def assert_same_sums(found: Tensor, expected: Tensor) -> None:
    """Bit for bit; but Triton's interpreter cuts bfloat16 off where a GPU rounds."""
    if expected.dtype == torch.bfloat16 and expected.device.type == "cpu":
        assert_alike(found, expected)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("place", "rows", "width", "dtype"), typed_sizes(SMALL, REAL))
def test_rows_are_copied_and_gathered_into_columns_and_nothing_beside_them(place, rows, width, dtype) -> None:
    ops, torch_ops = both(dtype, place)
    ids, table = torch.randint(50, (rows,), device=place), draw(50, width, dtype=dtype, place=place)
    x = columns(rows, width, dtype, place)
    fills = {
        "copy": lambda o, out: o.copy(x, out),
        "embed": lambda o, out: o.embed(ids, table, out),
        "rms_norm": lambda o, out: o.rms_norm(x, table[0], 1e-5, out),
    }
    for name, fill in fills.items():
        wide = ops.empty(rows, 2 * width + 8).fill_(7.0)
        out = wide[:, 8 : 8 + width]
        assert fill(ops, out) is out
        assert torch.equal(out, fill(ops, None)), name
        assert_alike(out, fill(torch_ops, None))
        assert (wide[:, :8] == 7).all() and (wide[:, 8 + width :] == 7).all()
    assert torch.equal(ops.copy(x), x) and torch.equal(ops.embed(ids, table), table[ids])


@pytest.mark.parametrize(("place", "rows", "width", "dtype"), typed_sizes(SMALL, REAL))
def test_norms_are_those_of_torch(place, rows, width, dtype) -> None:
    ops, torch_ops = both(dtype, place)
    weight, x = draw(width, dtype=dtype, place=place), columns(rows, width, dtype, place)
    assert_alike(ops.rms_norm(x, weight, 1e-5), torch_ops.rms_norm(x, weight, 1e-5))
    residual = draw(rows, width, dtype=dtype, place=place, scale=3)
    total = residual.clone()
    expected = torch_ops.add_rms_norm(total, x, weight, 1e-6)
    found = ops.add_rms_norm(residual, x, weight, 1e-6)
    assert_same_sums(residual, total)
    assert found.is_contiguous() and found.data_ptr() != residual.data_ptr()
    assert_alike(found, expected)


HEADS = [("cpu", 1, 4, 2, 8), ("cpu", 3, 3, 1, 16), ("cpu", 2, 9, 3, 20)]
REAL_HEADS = [
    ("cuda", rows, *heads) for rows in (1, 5, 1000) for heads in ((32, 8, 128), (9, 3, 64), (64, 8, 128), (5, 1, 80))
]


@pytest.mark.parametrize(("place", "rows", "q_heads", "k_heads", "width", "dtype"), typed_sizes(HEADS, REAL_HEADS))
def test_heads_are_normed_and_rotated_as_torch_does(place, rows, q_heads, k_heads, width, dtype) -> None:
    ops, torch_ops = both(dtype, place)
    qkv = draw(rows, q_heads + 2 * k_heads, width, dtype=dtype, place=place)
    weight = draw(width, dtype=dtype, place=place)
    angles = torch.randn(100, width // 2, device=place)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    positions = torch.randint(100, (rows,), device=place)
    expected = qkv.clone()
    for some, x in ((ops, qkv), (torch_ops, expected)):
        q, k, _ = x.split_with_sizes((q_heads, k_heads, k_heads), dim=1)
        some.rope(q, k, positions, cos, sin)
    assert_alike(qkv, expected)
    assert torch.equal(qkv[:, q_heads + k_heads :], expected[:, q_heads + k_heads :])
    q = qkv[:, :q_heads]
    normed = ops.rms_norm(q, weight, 1e-6)
    assert normed.is_contiguous()
    assert_alike(normed, torch_ops.rms_norm(q, weight, 1e-6))
    k = ops.rms_norm(qkv[:, q_heads : q_heads + k_heads], weight, 1e-6)
    turned_q, turned_k = normed.clone(), k.clone()
    ops.rope(normed, k, positions, cos, sin)
    torch_ops.rope(turned_q, turned_k, positions, cos, sin)
    assert_alike(normed, turned_q)
    assert_alike(k, turned_k)


GATES = [("cuda", rows, width) for rows in (1, 33, 1000) for width in (1536, 14336, 28672)]


@pytest.mark.parametrize(("place", "rows", "width", "dtype"), typed_sizes([*SMALL, ("cpu", 2, 300)], GATES))
def test_gated_activation_is_that_of_torch(place, rows, width, dtype) -> None:
    ops, torch_ops = both(dtype, place)
    gate_up = draw(rows, 2 * width, dtype=dtype, place=place, scale=20)
    limits = torch.tensor([0.0, -0.0, -87.0, -89.0, -1e4, 88.0, 1e4, -6e4], device=place)
    gate_up[0, :8], gate_up[0, width : width + 8] = limits.to(dtype), 1.0
    assert_alike(ops.silu_mul(gate_up), torch_ops.silu_mul(gate_up))


@pytest.mark.parametrize(("place", "rows", "width"), sizes([("cpu", 4, 40)], [("cuda", 300, 4096)]))
def test_rows_are_computed_alone_and_garbage_stays_in_its_row(place, rows, width) -> None:
    ops, _ = both(torch.bfloat16, place)
    x, residual = (draw(rows, width, dtype=torch.bfloat16, place=place) for _ in range(2))
    weight = draw(width, dtype=torch.bfloat16, place=place)
    x[1:] = float("nan")
    alone = residual[:1].clone()
    assert torch.equal(ops.add_rms_norm(alone, x[:1], weight, 1e-5)[0], ops.add_rms_norm(residual, x, weight, 1e-5)[0])
    assert torch.equal(ops.silu_mul(x[:1])[0], ops.silu_mul(x)[0])
    assert torch.equal(ops.rms_norm(x[:1], weight, 1e-5)[0], ops.rms_norm(x, weight, 1e-5)[0])


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 4096])
@pytest.mark.parametrize("width", [8, 20, 64, 576, 4096, 14336, 28672])
def test_programs_cover_every_element(rows: int, width: int) -> None:
    block, warps, parts = divide(rows, width)
    assert (parts - 1) * block < width <= parts * block and 1 <= warps <= 32
    height, wide, warps = tile(rows, width)
    assert wide >= width and height & (height - 1) == 0 == wide & (wide - 1) and warps & (warps - 1) == 0
    height, warps = rope_tile(rows, 9, wide)
    assert height & (height - 1) == 0 and warps & (warps - 1) == 0


def test_a_type_that_the_kernels_do_not_compute_in_is_named() -> None:
    with pytest.raises(OverdriveError, match=r"not torch\.float64"):
        CudaOps(torch.float64, torch.device("cpu"))


def test_columns_that_do_not_fit_are_named() -> None:
    ops, _ = both(torch.float32, "cpu")
    with pytest.raises(OverdriveError, match=r"\[2, 8\] torch\.float32"):
        ops.copy(torch.randn(2, 8), torch.zeros(2, 9))
