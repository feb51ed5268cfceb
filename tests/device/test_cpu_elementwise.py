"""The fused elementwise operations are those of plain torch, and every row is computed alone."""

from __future__ import annotations

import pytest
import torch

from overdrive.device.cpu.elementwise import CpuOps
from overdrive.device.cpu.team import Team
from overdrive.errors import OverdriveError
from overdrive.model.ops import TorchOps

WIDTHS = [16, 64, 576, 24, 7]
ROWS = [1, 2, 5, 33]
TORCH = TorchOps(torch.float32)


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    return CpuOps(Team(2))


def assert_alike(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_embedding_is_that_of_torch(ops: CpuOps, width: int, rows: int) -> None:
    ids, table = torch.randint(50, (rows,)), torch.randn(50, width)
    assert torch.equal(ops.embed(ids, table), TORCH.embed(ids, table))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_norm_is_that_of_torch(ops: CpuOps, width: int, rows: int) -> None:
    x, weight = torch.randn(rows, width) * 3, torch.randn(width)
    assert_alike(ops.rms_norm(x, weight, 1e-5), TORCH.rms_norm(x, weight, 1e-5))
    heads = torch.randn(rows, 5, width)[:, 1:4]
    assert_alike(ops.rms_norm(heads, weight, 1e-5), TORCH.rms_norm(heads, weight, 1e-5))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_added_norm_is_that_of_torch(ops: CpuOps, width: int, rows: int) -> None:
    residual, x, weight = torch.randn(rows, width), torch.randn(rows, 2 * width)[:, width:], torch.randn(width)
    expected_sum = residual.clone()
    expected = TORCH.add_rms_norm(expected_sum, x, weight, 1e-6)
    got = ops.add_rms_norm(residual, x, weight, 1e-6)
    assert torch.equal(residual, expected_sum)
    assert_alike(got, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 20, 64, 128])
def test_rope_is_that_of_torch(ops: CpuOps, width: int, rows: int) -> None:
    qkv = torch.randn(rows, 8, width)
    angles = torch.randn(100, width // 2)
    positions = torch.randint(100, (rows,))
    expected = qkv.clone()
    for rope, x in ((ops.rope, qkv), (TORCH.rope, expected)):
        q, k, _ = x.split([4, 2, 2], 1)
        rope(q, k, positions, angles.cos(), angles.sin())
    assert torch.equal(qkv, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_gated_activation_is_that_of_torch(ops: CpuOps, width: int, rows: int) -> None:
    gate_up = torch.randn(rows, 2 * width) * 20
    assert_alike(ops.silu_mul(gate_up), TORCH.silu_mul(gate_up))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_columns_of_a_wider_buffer_are_filled_and_nothing_beside_them(ops: CpuOps, width: int, rows: int) -> None:
    x, weight = torch.randn(rows, 3 * width)[:, width : 2 * width], torch.randn(width)
    ids, table = torch.randint(50, (rows,)), torch.randn(50, width)
    fills = {
        "copy": lambda o, out: o.copy(x, out),
        "embed": lambda o, out: o.embed(ids, table, out),
        "rms_norm": lambda o, out: o.rms_norm(x, weight, 1e-5, out),
    }
    for name, fill in fills.items():
        for some in (ops, TORCH):
            wide = some.empty(rows, 2 * width + 3).fill_(7.0)
            out = wide[:, 2 : 2 + width]
            assert fill(some, out) is out
            assert torch.equal(out, fill(some, None)), name
            assert (wide[:, :2] == 7).all() and (wide[:, 2 + width :] == 7).all()
    assert torch.equal(ops.copy(x), x)


def test_columns_that_do_not_fit_are_named(ops: CpuOps) -> None:
    with pytest.raises(OverdriveError, match=r"\[2, 8\] float32"):
        ops.copy(torch.randn(2, 8), torch.zeros(2, 9))
    with pytest.raises(OverdriveError, match=r"\[2, 8\] float32"):
        ops.copy(torch.randn(2, 8), torch.zeros(8, 2).T)


def test_gated_activation_at_its_limits(ops: CpuOps) -> None:
    gate = torch.tensor([0.0, -0.0, 1e-30, -87.0, -89.0, -1e4, -3e38, 88.0, 1e4, 3e38])
    gate_up = torch.cat([gate, torch.ones(10)])[None]
    assert_alike(ops.silu_mul(gate_up), TORCH.silu_mul(gate_up))


def test_rows_are_computed_alone(ops: CpuOps) -> None:
    x, residual, weight = torch.randn(33, 40), torch.randn(33, 40), torch.randn(40)
    sums = residual.clone()
    normed, gated = ops.add_rms_norm(sums, x, weight, 1e-5), ops.silu_mul(x)
    for row in range(33):
        one = residual[row : row + 1].clone()
        assert torch.equal(ops.add_rms_norm(one, x[row : row + 1], weight, 1e-5)[0], normed[row])
        assert torch.equal(ops.silu_mul(x[row : row + 1])[0], gated[row])
