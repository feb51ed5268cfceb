"""What is compiled before it is needed is what is launched then.

The heads are such as no other test has, so that nothing is compiled yet.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overdrive.device.attention.reference import PagedKV
from overdrive.device.cuda.ahead import compile_ahead
from overdrive.device.cuda.attention import CudaAttention, SplitSpace
from overdrive.model.ops import Angles

from .attention_batches import Row, Shape, fill, make_batch, make_qkv, on


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [[Row(500, 4), Row(90, 2)], [Row(120, 9), Row(40, 1)], [Row(20, 1)] * 150])
@pytest.mark.parametrize("width", [0, 32])
def test_nothing_is_compiled_behind_what_was_compiled_ahead(
    rows: list[Row], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = pytest.importorskip("triton.knobs")
    compiled: list[str] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda *, src, **_: compiled.append(src.fn.__name__))
    heads, long = Shape(10, 2, 64, width), max(row.tokens for row in rows) > 4
    batch = make_batch(rows, 16)
    kv, (q, k, v) = fill(batch, heads, 16, torch.bfloat16), make_qkv(batch, heads, torch.bfloat16)
    kv = PagedKV([kv.k_pages[0].cuda()], [kv.v_pages[0].cuda()], 16)
    batch, q, k, v = on("cuda", batch), q.cuda(), k.cuda(), v.cuda()
    attention = CudaAttention(kv, heads, batch, 4, long, SplitSpace.allocate([heads], 4, "cuda"))
    compile_ahead([attention, attention])
    tables = torch.ones((1024, 32), dtype=torch.bfloat16, device="cuda")
    attention.rotate_and_attend(0, q, k, v, Angles(batch.positions, tables, tables))
    torch.cuda.synchronize()
    attending = [name for name in compiled if name in ("decode_kernel", "prefill_kernel")]
    assert sorted(attending) == ["decode_kernel", "prefill_kernel"][: 1 + long]


def test_errors_of_compiling_are_raised_to_whoever_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")

    class Broken:
        def compile(self) -> None:
            raise RuntimeError("no such instruction")

    passes: Any = [Broken()]
    with pytest.raises(RuntimeError, match="no such instruction"):
        compile_ahead(passes)
