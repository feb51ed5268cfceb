"""Laws of products for few tokens: a layer's chain is that of plain torch, and a row is computed alone.

On a CUDA device at real sizes; elsewhere at small ones in Triton's interpreter, if TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.cuda.few import (
    HEIGHTS,
    FewProducts,
    FewResidual,
    Kind,
    Tiling,
    choose_tiling,
    most_tokens,
    takes,
)
from overdrive.device.cuda.ops import CudaOps
from overdrive.model.assemble import Form, assemble, dense_factory
from overdrive.model.dummy import RandomCheckpoint, tiny_config
from overdrive.model.ops import Ops, TorchOps
from overdrive.model.residual import NormedResidual, Residual
from overdrive.model.transformer import DenseLinear, Transformer
from tests.device.cuda.devices import DEVICES, INTERPRETED
from tests.model.paged import make_batch

interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")

EPS = 1e-5
HALF = {"cpu": torch.float16, "cuda": torch.bfloat16}  # the interpreter multiplies bfloat16 as if it were integers
SHARED_BYTES = 99 << 10
"""Of a program, on the smallest of the devices that have tensor cores."""

# What the interpreter tries: plain, split unevenly, the weight as first operand, by descriptors.
TILINGS = [
    Tiling(32, 32),
    Tiling(16, 64, splits=3),
    Tiling(32, 16, splits=2, first=True),
    Tiling(16, 32, splits=2, mapped=True),
]
SIZES = [(64, 96, 128), (72, 104, 88)]  # hidden, mlp, qkv: such that tiles come out even, and not


@dataclass(frozen=True)
class Layer:
    """Weights of a layer whose attention is the first columns of qkv."""

    qkv: DenseLinear
    output: DenseLinear
    gate_up: DenseLinear
    down: DenseLinear
    norms: tuple[Tensor, Tensor]

    @classmethod
    def draw(cls, hidden: int, mlp: int, qkv: int, biased: bool, dtype: torch.dtype, place: str) -> Layer:
        def linear(outputs: int, inputs: int) -> DenseLinear:
            weight = (torch.randn(outputs, inputs, device=place) * inputs**-0.5).to(dtype)
            return DenseLinear(weight, torch.randn(outputs, device=place).to(dtype) if biased else None)

        first, second = (torch.rand(2, hidden, device=place) + 0.5).to(dtype)
        return cls(
            linear(qkv, hidden), linear(hidden, qkv), linear(2 * mlp, hidden), linear(hidden, mlp), (first, second)
        )

    def to(self, dtype: torch.dtype) -> Layer:
        linears = (self.qkv, self.output, self.gate_up, self.down)
        converted = [DenseLinear(w.weight.to(dtype), None if w.bias is None else w.bias.to(dtype)) for w in linears]
        first, second = (norm.to(dtype) for norm in self.norms)
        return Layer(*converted, (first, second))

    def run(self, residual: Residual) -> list[Tensor]:
        """Everything that two such layers make of a stream."""
        made = []
        for _ in range(2):
            qkv = residual.project(self.qkv)
            residual.add(self.output, qkv, self.norms[1])
            made += [qkv, residual.value.clone()]
            gated = residual.gate(self.gate_up)
            residual.add(self.down, gated, self.norms[0])
            made += [gated, residual.value.clone()]
        return [*made, residual.normed()]

    def run_few(self, x: Tensor, tiling: Tiling | None = None, early: bool = False) -> list[Tensor]:
        products = FewProducts(x.device, early, choose_tiling if tiling is None else always(tiling))
        made = self.run(self.open(FewResidual, CudaOps(x.dtype, x.device), x.clone(), products))
        assert not products._arrivals.any()
        return made

    def run_exact(self, x: Tensor) -> list[Tensor]:
        exact, ops = self.to(torch.float64), TorchOps(torch.float64, x.device)
        return exact.run(exact.open(NormedResidual, ops, x.double()))

    def open(self, kind: Callable[..., Residual], ops: Ops, value: Tensor, *first: object) -> Residual:
        return kind(*first, ops, value, ops.rms_norm(value, self.norms[0], EPS), EPS)


def always(tiling: Tiling) -> Callable[[Kind, int, int, int], Tiling]:
    """Only additions are split."""
    return lambda kind, outputs, inputs, height: tiling if kind == "add" else tiling._replace(splits=1)


def stream(rows: int, hidden: int, place: str) -> Tensor:
    return (3 * torch.randn(rows, hidden, device=place)).to(HALF[place])


def assert_near(found: list[Tensor], exact: list[Tensor]) -> None:
    """Within a few roundings of the type, which pile up along the chain."""
    for mine, right in zip(found, exact, strict=True):
        assert (mine.double() - right).norm() < 4 * torch.finfo(mine.dtype).eps * right.norm()


@interpreted
@pytest.mark.parametrize(
    ("tiling", "rows", "biased"), list(zip(TILINGS, (1, 17, 5, 3), (False, True, True, False), strict=True))
)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_layer_is_that_of_torch(tiling: Tiling, sizes: tuple[int, int, int], rows: int, biased: bool) -> None:
    pytest.importorskip("triton")
    layer, x = Layer.draw(*sizes, biased, torch.float16, "cpu"), stream(rows, sizes[0], "cpu")
    assert_near(layer.run_few(x, tiling), layer.run_exact(x))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(4096, 14336, 6144), (576, 1536, 960), (1000, 2008, 3000)])
@pytest.mark.parametrize(("rows", "biased"), [(1, False), (7, True), (16, False), (32, False)])
def test_a_layer_is_that_of_torch_on_a_device(
    dtype: torch.dtype, sizes: tuple[int, int, int], rows: int, biased: bool
) -> None:
    layer, x = Layer.draw(*sizes, biased, dtype, "cuda"), stream(rows, sizes[0], "cuda").to(dtype)
    assert_near(layer.run_few(x), layer.run_exact(x))


@pytest.mark.cuda
@pytest.mark.parametrize("tiling", [*TILINGS[:2], Tiling(64, 64, 3, first=True), Tiling(64, 64, 2, mapped=True)])
@pytest.mark.parametrize("early", [False, True])
def test_every_kind_of_tiling_is_that_of_torch_on_a_device(tiling: Tiling, early: bool) -> None:
    layer, x = Layer.draw(1000, 2008, 3000, True, torch.bfloat16, "cuda"), stream(9, 1000, "cuda")
    assert_near(layer.run_few(x, tiling, early), layer.run_exact(x))


@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_is_the_same_whatever_stands_beside_it(place: str, splits: int) -> None:
    pytest.importorskip("triton")
    sizes = (72, 104, 88) if place == "cpu" else (4096, 14336, 6144)
    layer, x = Layer.draw(*sizes, True, HALF[place], place), stream(16, sizes[0], place)
    tiling = Tiling(32, 32, splits) if place == "cpu" else None
    together = layer.run_few(x, tiling)
    for rows in (1, 2, 11):
        for mine, theirs in zip(layer.run_few(x[:rows], tiling), together, strict=True):
            assert torch.equal(mine, theirs[:rows])
    poisoned = x.clone()
    poisoned[1:] = float("nan")
    for mine, theirs in zip(layer.run_few(poisoned, tiling), together, strict=True):
        assert torch.equal(mine[0], theirs[0])


@interpreted
def test_a_sum_does_not_depend_on_which_program_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    layer, x, tiling = Layer.draw(64, 96, 128, False, torch.float16, "cpu"), stream(3, 64, "cpu"), Tiling(32, 16, 3)
    forwards = layer.run_few(x, tiling)
    builder = interpreter.interpreter_builder
    go_to: Callable[[int, int, int], None] = builder.set_grid_idx
    counts: list[int] = []

    def backwards(x: int, y: int, z: int) -> None:
        counts.append(builder.grid_dim[1])
        go_to(x, builder.grid_dim[1] - 1 - y, z)

    monkeypatch.setattr(builder, "set_grid_idx", backwards)
    for mine, theirs in zip(layer.run_few(x, tiling), forwards, strict=True):
        assert torch.equal(mine, theirs)
    assert max(counts) == 3


@pytest.mark.cuda
@pytest.mark.parametrize("early", [False, True])
def test_replays_of_a_graph_repeat_each_other_bit_by_bit_on_a_device(early: bool) -> None:
    layer, x = Layer.draw(4096, 14336, 6144, False, torch.bfloat16, "cuda"), stream(4, 4096, "cuda")
    products, ops = FewProducts(x.device, early), CudaOps(x.dtype, x.device, early)

    def work() -> list[Tensor]:
        return layer.run(layer.open(FewResidual, ops, ops.copy(x), products))

    first = [made.clone() for made in work()]  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = work()
    for _ in range(50):
        graph.replay()
        for mine, theirs in zip(made, first, strict=True):
            assert torch.equal(mine, theirs)


@interpreted
def test_linears_of_other_forms_are_called_as_they_are() -> None:
    pytest.importorskip("triton")
    plain, x = Layer.draw(64, 96, 128, False, torch.float16, "cpu"), stream(3, 64, "cpu")
    for names in (("qkv", "gate_up"), ("output", "down"), ("qkv", "output", "gate_up", "down")):
        called: list[str] = []

        def other(name: str, called: list[str] = called) -> Callable[[Tensor], Tensor]:
            return lambda x: (called.append(name), getattr(plain, name)(x))[1]

        linears = {name: other(name) if name in names else getattr(plain, name) for name in LINEARS}
        assert_near(Layer(**linears, norms=plain.norms).run_few(x, TILINGS[1]), plain.run_exact(x))
        assert sorted(called) == sorted(2 * names)


LINEARS = ("qkv", "output", "gate_up", "down")


@interpreted
def test_steps_of_few_tokens_in_half_precision_alone_go_this_way() -> None:
    pytest.importorskip("triton")
    for dtype, rows, kind in (
        (torch.float16, HEIGHTS[-1], FewResidual),
        (torch.float16, HEIGHTS[-1] + 1, NormedResidual),
        (torch.float32, 1, NormedResidual),
    ):
        x = torch.zeros(rows, 8, dtype=dtype)
        assert type(CudaOps(dtype, torch.device("cpu")).residual(x, x, EPS)) is kind


def test_what_cannot_be_multiplied_is_left_to_others() -> None:
    linear, x = DenseLinear(torch.zeros(4, 8).half()), torch.zeros(2, 8).half()
    assert takes(linear, x)
    assert not takes(lambda x: x, x)
    assert not takes(linear, x.float())
    assert not takes(linear, x.new_zeros(HEIGHTS[-1] + 1, 8))
    assert not takes(linear, x.new_zeros(8, 2).t())
    assert not takes(DenseLinear(torch.zeros(8, 4).half().t()), x)
    assert most_tokens(torch.float32, torch.device("cpu")) == 0


@pytest.mark.parametrize("kind", ["project", "gate", "add"])
@pytest.mark.parametrize("height", HEIGHTS)
def test_every_shape_has_a_tiling_that_devices_have_room_for(kind: Kind, height: int) -> None:
    for outputs, inputs in product((64, 576, 960, 4096, 6144, 14336, 28672), (64, 576, 1536, 4096, 8192, 14336)):
        tiling = choose_tiling(kind, outputs, inputs, height)
        assert tiling.shared_bytes(kind, height) <= SHARED_BYTES
        assert 1 <= tiling.splits <= max(1, -(-inputs // tiling.depth)) and (kind == "add" or tiling.splits == 1)
        for size in (tiling.width, tiling.depth, tiling.warps, tiling.ahead):
            assert size & (size - 1) == 0 < size


@interpreted
def test_a_model_by_these_products_scores_as_by_plain_torch() -> None:
    pytest.importorskip("triton")
    cpu, config = torch.device("cpu"), tiny_config()
    scores = []
    for dtype, ops in ((torch.float16, CudaOps(torch.float16, cpu)), (torch.float64, TorchOps(torch.float64))):
        dense = dense_factory(dtype, cpu)
        form = Form(dtype, cpu, dense, ops, dense)
        scores.append(logits(assemble(config, RandomCheckpoint(config, 0), form, 64, lambda *_: None)))
    assert (scores[0].double() - scores[1]).norm() < 0.01 * scores[1].norm()


@torch.inference_mode()
def logits(model: Transformer) -> Tensor:
    """Of one sequence of nine tokens."""
    batch = make_batch([(list(range(9)), 0)], [[1]], 16)
    kv = PagedKV.allocate(model.config, 2, 16, model.dtype, "cpu")
    return model.logits(model.forward(batch, ReferenceAttention(kv, batch, model.config), (1,)).final)
