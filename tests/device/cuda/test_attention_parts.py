"""Laws of rows whose keys are shared among programs: the last of them combines what all have found.

On a CUDA device they run at full size; elsewhere at small shapes in Triton's interpreter, if TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.cuda.attention import CudaAttention, SplitSpace
from tests.device.cuda.attention_batches import Row, Shape, expected, fill, make_batch, make_qkv, on
from tests.device.cuda.devices import INTERPRETED

interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")

SMALL, LARGE = Shape(8, 2, 128), Shape(32, 8, 128)
SHORT = [Row(500, 4), Row(0, 1), Row(0, 0), Row(90, 2)]
LONG = [Row(120, 9), Row(40, 1)]


class Pass:
    """Rows with their keys, values and queries; may run over and over."""

    def __init__(self, rows: Sequence[Row], heads: Shape, dtype: torch.dtype, device: str, width: int = 0) -> None:
        self.heads = heads
        batch = make_batch(rows, 16, 0, width)
        kv = fill(batch, heads, 16, dtype)
        self.kv = PagedKV([kv.k_pages[0].to(device)], [kv.v_pages[0].to(device)], 16)
        self.qkv = tuple(x.to(device) for x in make_qkv(batch, heads, dtype))
        self.batch = on(device, batch)
        self.long = max(row.tokens for row in rows) > 4

    def attention(self, space: SplitSpace) -> CudaAttention:
        return CudaAttention(self.kv, self.heads, self.batch, 4, self.long, space)

    def run(self, space: SplitSpace, splits: int, least: int = 1) -> Tensor:
        """Results where short rows have `splits` programs, and long ones as many as the space makes of them."""
        attention = self.attention(space)
        attention.splits, attention.least = splits, least
        return attention(0, *self.qkv)

    def expected(self) -> Tensor:
        return expected(self.batch, self.heads, self.kv, *self.qkv)


def small(rows: Sequence[Row]) -> Pass:
    return Pass(rows, SMALL, torch.float32, "cpu")


def room(processors: int = 32) -> SplitSpace:
    return SplitSpace.allocate([SMALL], 4, "cpu", processors)


@interpreted
@pytest.mark.parametrize("splits", [2, 3, 8, 17, 32])  # fewer than are combined at once, as many, more
def test_any_number_of_programs_finds_the_same(splits: int) -> None:
    pytest.importorskip("triton")
    rows = small(SHORT)
    torch.testing.assert_close(rows.run(room(), splits).double(), rows.expected(), atol=3e-5, rtol=3e-5)


@interpreted
@pytest.mark.parametrize("least", [2, 3, 100])
def test_few_keys_have_fewer_programs_and_the_same_results(least: int) -> None:
    pytest.importorskip("triton")
    rows = small(SHORT)
    torch.testing.assert_close(rows.run(room(), 8, least).double(), rows.expected(), atol=3e-5, rtol=3e-5)


@interpreted
@pytest.mark.parametrize("rows", [SHORT, LONG])
def test_what_an_earlier_pass_left_is_not_read(rows: list[Row]) -> None:
    pytest.importorskip("triton")
    fresh, used = room(), room()
    for parts in (used.sums, used.totals, used.tops):
        parts.fill_(float("nan"))
    case = small(rows)
    assert torch.equal(case.run(fresh, 8), case.run(used, 8))
    assert not used.arrivals.any()


@interpreted
def test_passes_of_other_lengths_in_turn_leave_each_other_alone() -> None:
    pytest.importorskip("triton")
    space, cases = room(), [small(SHORT), small(LONG), small([Row(30, 4), Row(260, 1)])]
    alone = [case.run(room(), 8) for case in cases]
    for case, result in zip(cases * 2, alone * 2, strict=True):
        assert torch.equal(case.run(space, 8), result)


@interpreted
@pytest.mark.parametrize("rows", [SHORT, LONG])
def test_results_do_not_depend_on_which_program_is_last(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    case, space = small(rows), room()
    forwards = case.run(space, 8)
    builder = interpreter.interpreter_builder
    go_to: Callable[[int, int, int], None] = builder.set_grid_idx
    counts: list[int] = []

    def backwards(x: int, y: int, z: int) -> None:
        splits = builder.grid_dim[2]
        counts.append(splits)
        go_to(x, y, splits - 1 - z)

    monkeypatch.setattr(builder, "set_grid_idx", backwards)
    assert torch.equal(case.run(space, 8), forwards)
    assert max(counts) >= 8


@pytest.mark.cuda
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_replays_of_a_graph_repeat_each_other_bit_by_bit_on_a_device(rows: int, early: bool) -> None:
    """Lengths change from replay to replay, and come back."""
    contexts = [[(401 * n + 61 * row) % limit for row in range(rows)] for n, limit in enumerate((3000, 300, 1000, 65))]
    cases = [
        Pass([Row(c, 4 if row % 2 else 3) for row, c in enumerate(some)], LARGE, torch.bfloat16, "cuda", 192)
        for some in contexts
    ]
    static, space = cases[0], SplitSpace.allocate([LARGE], 4, "cuda")
    replay = _captured(static, space, early)
    inputs = [[x.clone() for x in _inputs(case)] for case in cases]
    first: list[Tensor] = []
    for turn in range(25):
        for number, case in enumerate(inputs):
            for mine, given in zip(_inputs(static), case, strict=True):
                mine.copy_(given)
            out = replay()
            if not turn:
                torch.testing.assert_close(out.double(), static.expected(), atol=2e-2, rtol=2e-2)
                first.append(out.clone())
            assert torch.equal(out, first[number]), (turn, number)
    assert not space.arrivals.any()


def _captured(static: Pass, space: SplitSpace, early: bool) -> Callable[[], Tensor]:
    """Replays a graph of several layers in a row over the same pages: each has parts of its own in the same space."""
    attention = static.attention(space)
    attention.early = early
    attention(0, *static.qkv)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(8):
            out = attention(0, *static.qkv)

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def _inputs(case: Pass) -> list[Tensor]:
    """Everything that a pass reads."""
    batch = [getattr(case.batch, field.name) for field in fields(Batch)]
    return [*batch, case.kv.k_pages[0], case.kv.v_pages[0], *case.qkv]
