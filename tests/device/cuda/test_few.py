"""Laws of products for few tokens: a layer's chain is that of plain torch, a row is computed alone, and nothing but a
product's order of additions tells them from the library's.

On a CUDA device at real sizes; elsewhere at small ones in Triton's interpreter, if TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.cuda.few import HEIGHTS, LEAST_ROOM, FewProducts, Kind, Tiling, choose_tiling, most_tokens, takes
from overdrive.device.cuda.ops import CudaOps
from overdrive.model.assemble import Form, assemble, dense_factory
from overdrive.model.dummy import RandomCheckpoint, tiny_config
from overdrive.model.ops import Ops, TorchOps
from overdrive.model.transformer import DenseLinear, Linear, Transformer
from tests.device.cuda.devices import DEVICES, INTERPRETED
from tests.model.paged import make_batch

interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")

EPS = 1e-5
HALF = {"cpu": torch.float16, "cuda": torch.bfloat16}  # the interpreter multiplies bfloat16 as if it were integers

# What the interpreter tries: plain, split unevenly, the weight as first operand, by descriptors.
TILINGS = [
    Tiling(32, 32),
    Tiling(16, 64, splits=3),
    Tiling(32, 16, splits=2, first=True),
    Tiling(16, 32, splits=2, mapped=True),
]
LINEARS = ("qkv", "output", "gate_up", "down")
SIZES = [(64, 96, 128), (72, 104, 88)]  # hidden, mlp, qkv: such that tiles come out even, and not


@dataclass(frozen=True)
class Layer:
    """Weights of a layer whose attention is the first columns of qkv."""

    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
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

    def with_linears(self, change: Callable[[DenseLinear], Linear], names: Collection[str] = LINEARS) -> Layer:
        return replace(self, **{name: change(getattr(self, name)) for name in names})

    def run(self, ops: Ops, value: Tensor) -> list[Tensor]:
        """Everything that two such layers make of a stream, which is left as it is."""
        value, made = value.clone(), []
        x = ops.rms_norm(value, self.norms[0], EPS)
        for _ in range(2):
            qkv = ops.project(self.qkv, x)
            x = ops.add_rms_norm(value, ops.project(self.output, qkv), self.norms[1], EPS)
            made += [qkv, value.clone(), x]
            gated = ops.gate(self.gate_up, x)
            x = ops.add_rms_norm(value, ops.project(self.down, gated), self.norms[0], EPS)
            made += [gated, value.clone(), x]
        return made

    def run_few(self, x: Tensor, tiling: Tiling | None = None) -> list[Tensor]:
        ops = few_ops(x, tiling)
        made = self.run(ops, x)
        assert not ops._products._arrivals.any()
        return made

    def run_exact(self, x: Tensor) -> list[Tensor]:
        def exact(linear: DenseLinear) -> DenseLinear:
            return DenseLinear(linear.weight.double(), None if linear.bias is None else linear.bias.double())

        first, second = self.norms
        layer = replace(self.with_linears(exact), norms=(first.double(), second.double()))
        return layer.run(TorchOps(torch.float64, x.device), x.double())


def few_ops(x: Tensor, tiling: Tiling | None = None) -> CudaOps:
    """Operations whose products of few tokens have such a tiling."""
    products = FewProducts(x.device, choose_tiling if tiling is None else always(tiling))
    return CudaOps(x.dtype, x.device, products=products)


def always(tiling: Tiling) -> Callable[[Kind, int, int, int], Tiling]:
    """Inputs of a gate are never shared."""
    return lambda kind, outputs, inputs, height: tiling if kind == "project" else tiling._replace(splits=1)


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
def test_every_kind_of_tiling_is_that_of_torch_on_a_device(tiling: Tiling) -> None:
    layer, x = Layer.draw(1000, 2008, 3000, True, torch.bfloat16, "cuda"), stream(9, 1000, "cuda")
    assert_near(layer.run_few(x, tiling), layer.run_exact(x))


@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize(("tiling", "biased"), [(Tiling(32, 32), True), (Tiling(16, 16, splits=3), False)])
def test_given_equal_products_all_else_is_equal_bit_by_bit(place: str, tiling: Tiling, biased: bool) -> None:
    pytest.importorskip("triton")
    sizes = (40, 56, 48) if place == "cpu" else (4096, 14336, 6144)
    layer, x = Layer.draw(*sizes, biased, HALF[place], place), stream(5, sizes[0], place)
    products = FewProducts(x.device, always(tiling))
    alone = FewProducts(x.device, always(tiling._replace(splits=1)))  # as the programs of a gate
    plain = layer.with_linears(lambda linear: partial(products.project, linear))
    plain = replace(plain, gate_up=partial(alone.project, layer.gate_up))
    for mine, right in zip(layer.run_few(x, tiling), plain.run(CudaOps(x.dtype, x.device), x), strict=True):
        assert torch.equal(mine, right)


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
def test_replays_of_a_graph_repeat_each_other_bit_by_bit_on_a_device() -> None:
    layer, x = Layer.draw(4096, 14336, 6144, False, torch.bfloat16, "cuda"), stream(4, 4096, "cuda")
    ops = few_ops(x)
    first = [made.clone() for made in layer.run(ops, x)]  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = layer.run(ops, x)
    for _ in range(50):
        graph.replay()
        for mine, theirs in zip(made, first, strict=True):
            assert torch.equal(mine, theirs)


@interpreted
def test_linears_of_other_forms_are_called_as_they_are() -> None:
    pytest.importorskip("triton")
    plain, x = Layer.draw(64, 96, 128, False, torch.float16, "cpu"), stream(3, 64, "cpu")
    for names in (("qkv", "gate_up"), ("output", "down"), LINEARS):
        called: list[Linear] = []

        def other(linear: Linear, called: list[Linear] = called) -> Linear:
            return lambda x: (called.append(linear), linear(x))[1]

        assert_near(plain.with_linears(other, names).run_few(x, TILINGS[1]), plain.run_exact(x))
        assert len(called) == 2 * len(names)


@interpreted
def test_steps_of_few_tokens_in_half_precision_alone_go_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    made: list[str] = []
    monkeypatch.setattr(FewProducts, "project", lambda self, linear, x: made.append("project"))
    monkeypatch.setattr(FewProducts, "gate", lambda self, linear, x: made.append("gate"))
    for dtype, rows, expected in (
        (torch.float16, HEIGHTS[-1], ["project", "gate"]),
        (torch.float16, HEIGHTS[-1] + 1, []),
        (torch.float32, 1, []),
    ):
        ops, x = CudaOps(dtype, torch.device("cpu")), torch.zeros(rows, 8, dtype=dtype)
        linear = DenseLinear(torch.zeros(16, 8, dtype=dtype))
        made.clear()
        ops.project(linear, x), ops.gate(linear, x)
        assert made == expected


def test_what_cannot_be_multiplied_is_left_to_others() -> None:
    linear, x = DenseLinear(torch.zeros(4, 8).half()), torch.zeros(2, 8).half()
    assert takes(linear, x)
    assert not takes(lambda x: x, x)
    assert not takes(linear, x.float())
    assert not takes(linear, x.new_zeros(HEIGHTS[-1] + 1, 8))
    assert not takes(linear, x.new_zeros(8, 2).t())
    assert not takes(DenseLinear(torch.zeros(8, 4).half().t()), x)
    assert most_tokens(torch.float32, torch.device("cpu")) == 0


@pytest.mark.parametrize("kind", ["project", "gate"])
@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("room", [LEAST_ROOM, 164 << 10, 227 << 10])
def test_every_shape_has_a_tiling_that_devices_have_room_for(kind: Kind, height: int, room: int) -> None:
    for outputs, inputs in product((64, 576, 960, 4096, 6144, 14336, 28672), (64, 576, 1536, 4096, 8192, 14336)):
        tiling = choose_tiling(kind, outputs, inputs, height, room)
        assert tiling.shared_bytes(kind, height) <= room
        assert 1 <= tiling.splits <= max(1, -(-inputs // tiling.depth)) and (kind == "project" or tiling.splits == 1)
        for size in (tiling.width, tiling.depth, tiling.warps):
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
