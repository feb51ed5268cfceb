"""Laws of storing keys and values: each at its place, rotated where asked, padding nowhere.

On a CUDA device the kernels run too; elsewhere they do in Triton's interpreter, if TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from overdrive.device.cuda.store import (
    rope_store,
    rope_store_torch,
    rope_store_triton,
    store,
    store_torch,
    store_triton,
)
from overdrive.errors import OverdriveError
from overdrive.model.ops import TorchOps
from overdrive.model.rope import RopeConfig, rope_tables
from tests.device.cuda.attention_batches import Row, Shape, make_batch, make_qkv
from tests.device.cuda.devices import DEVICES

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
ROWS = [Row(5, 2), Row(0, 0), Row(90, 1), Row(3, 4), Row(0, 0)]
SHAPES = [Shape(8, 2, 64), Shape(9, 3, 80), Shape(4, 4, 32)]
BATCH = make_batch(ROWS, 4, padding=3)
REAL = 7


def pages(heads: Shape, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    shape = (int(BATCH.page_table.max()) + 1, heads.kv_heads, 4, heads.head_dim)
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]


def at_places(stored: Tensor) -> Tensor:
    """[REAL, Hkv, D] of pages, where the real tokens stand."""
    return stored.transpose(1, 2).flatten(0, 1)[BATCH.writes[:REAL].to(stored.device)]


def tables(heads: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return rope_tables(RopeConfig(theta=1e4), heads.head_dim, 128, dtype)


@pytest.mark.parametrize("heads", SHAPES)
def test_stored_is_what_was_given_and_padding_nowhere(heads: Shape) -> None:
    _, k, v = make_qkv(BATCH, heads, torch.float64)
    stored = pages(heads, torch.float64)
    store(k, v, *stored, BATCH.writes, BATCH.offsets)
    for mine, given in zip(stored, (k, v), strict=True):
        assert torch.equal(at_places(mine), given[:REAL])
        assert mine.count_nonzero() == given[:REAL].count_nonzero()


@pytest.mark.parametrize("heads", SHAPES)
def test_rotating_on_the_way_is_rotating_before(heads: Shape) -> None:
    q, k, v = make_qkv(BATCH, heads, torch.float64)
    cos, sin = tables(heads, torch.float64)
    first, second = q.clone(), k.clone()
    TorchOps(torch.float64).rope(first, second, BATCH.positions, cos, sin)
    stored, before = pages(heads, torch.float64), k.clone()
    rope_store(q, k, v, BATCH.positions, cos, sin, *stored, BATCH.writes, BATCH.offsets)
    assert torch.equal(q[:REAL], first[:REAL])
    assert torch.equal(k[:REAL], before[:REAL])
    assert torch.equal(at_places(stored[0]), second[:REAL])
    assert torch.equal(at_places(stored[1]), v[:REAL])
    assert not stored[0][0].any() and not stored[1][0].any()


def kernels_agree(heads: Shape, dtype: torch.dtype, table_dtype: torch.dtype, device: str) -> None:
    """Both kernels write what their torch forms write, within one rounding of the dtype."""
    pytest.importorskip("triton")
    positions, writes, offsets = (x.to(device) for x in (BATCH.positions, BATCH.writes, BATCH.offsets))
    qkv = [[x.to(device) for x in make_qkv(BATCH, heads, dtype)] for _ in range(2)]
    cos, sin = (x.to(device) for x in tables(heads, table_dtype))
    plain, rotated = [[pages(heads, dtype, device) for _ in range(2)] for _ in range(2)]
    for index, (store_form, rope_form) in enumerate(
        [(store_torch, rope_store_torch), (store_triton, rope_store_triton)]
    ):
        store_form(*qkv[index][1:], *plain[index], writes, offsets)
        rope_form(*qkv[index], positions, cos, sin, *rotated[index], writes, offsets)
    error = torch.finfo(dtype).eps
    for mine, right in zip((*plain[1], rotated[1][1]), (*plain[0], rotated[0][1]), strict=True):
        assert torch.equal(mine, right)
    torch.testing.assert_close(rotated[1][0], rotated[0][0], atol=2 * error, rtol=error)
    torch.testing.assert_close(qkv[1][0][:REAL], qkv[0][0][:REAL], atol=2 * error, rtol=error)


@interpreted
@pytest.mark.parametrize("heads", SHAPES)
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.float16])
def test_kernels_write_what_the_plain_forms_write(heads: Shape, table_dtype: torch.dtype) -> None:
    kernels_agree(heads, torch.float32, table_dtype, "cpu")
    kernels_agree(heads, torch.float16, table_dtype, "cpu")


@pytest.mark.cuda
@pytest.mark.parametrize("heads", [*SHAPES, Shape(32, 8, 128), Shape(16, 1, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_kernels_write_what_the_plain_forms_write_on_a_device(heads: Shape, dtype: torch.dtype) -> None:
    for table_dtype in {dtype, torch.float32}:
        kernels_agree(heads, dtype, table_dtype, "cuda")


@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("heads", [SHAPES[0], Shape(6, 2, 32)])
def test_the_launch_that_attends_rotates_to_the_same_bits(heads: Shape, table_dtype: torch.dtype, place: str) -> None:
    pytest.importorskip("triton")
    from tests.device.cuda.rotated_kernel import rotated_kernel

    dtype = torch.float16 if place == "cpu" else torch.bfloat16
    positions, writes, offsets = (x.to(place) for x in (BATCH.positions, BATCH.writes, BATCH.offsets))
    q, k, v = (x.to(place) for x in make_qkv(BATCH, heads, dtype))
    cos, sin = (x.to(place) for x in tables(heads, table_dtype))
    rotated = [torch.empty(x.shape, dtype=dtype, device=place) for x in (q, k)]
    for x, out in zip((q, k), rotated, strict=True):
        rotated_kernel[(len(x),)](out, x, x.stride(0), positions, cos, sin, COUNT=8, HEADS=x.shape[1], D=x.shape[2])
    stored = pages(heads, dtype, place)
    rope_store_triton(q, k, v, positions, cos, sin, *stored, writes, offsets)
    assert torch.equal(rotated[0][:REAL], q[:REAL])
    assert torch.equal(rotated[1][:REAL], at_places(stored[0]))


def test_a_wrong_layout_is_named() -> None:
    pytest.importorskip("triton")
    _, k, v = make_qkv(BATCH, SHAPES[0], torch.float32)
    wrong = k.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(OverdriveError, match="next to each other"):
        store_triton(wrong, v, *pages(SHAPES[0], torch.float32), BATCH.writes, BATCH.offsets)
