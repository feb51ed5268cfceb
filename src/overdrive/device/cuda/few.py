"""A decoder's products for steps of few tokens, where nothing counts but how fast weights are read.

Norm, bias, activation and addition to the residual stream are part of the products' launches: a layer is `project`,
attention, `add`, `gate`, `add`. A row's results depend on neither the other rows nor, within `HEIGHTS`, their number.
Knows weights and tilings; the arithmetic is in `few_kernels`, which is imported when the first `FewProducts` is made.
On CPU tensors the kernels run in Triton's interpreter alone; `NormedResidual` over `TorchOps` is their reference.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor

from overdrive.device.cuda.store import power_of_two
from overdrive.model.ops import Ops
from overdrive.model.transformer import DenseLinear, Linear

HEIGHTS = (16, 32)
"""Rows of a tile: the least that tensor cores multiply, and two of those."""
MOST_TOKENS = 32
"""Of a step whose products are made here, at most the largest of `HEIGHTS`; 0 leaves all to the library."""
DTYPES = (torch.bfloat16, torch.float16)
CAPABILITY = (9, 0)
"""Of the devices on which this was measured to pay; others keep to the library."""
MOST_TILES = 4096
"""Of a product that adds: the residual stream's width over that of a tile."""
PROCESSORS = 132
"""That the rule for shapes without a measured tiling has in mind. A constant: results depend on tilings."""

Kind = Literal["project", "gate", "add"]


class Tiling(NamedTuple):
    """How a product is divided. width, depth: outputs and inputs of a tile of weights. splits: programs that share the
    inputs, of `add` alone. warps, stages: of a program. first, mapped, ahead: FIRST, MAPPED and AHEAD of the kernels.
    """

    width: int
    depth: int
    splits: int = 1
    warps: int = 4
    stages: int = 4
    first: bool = False
    mapped: bool = False
    ahead: int = 2

    def shared_bytes(self, kind: Kind, height: int) -> int:
        """Shared memory of a program: so many tiles of both operands, of elements of two bytes, are there at once."""
        rows = height + self.width * (2 if kind == "gate" else 1)
        return 2 * rows * self.depth * (self.stages if self.first else self.stages - 1)


Choose = Callable[[Kind, int, int, int], Tiling]
"""choose(kind, outputs, inputs, height): outputs are those that come out, half the weight's of a "gate"."""

MEASURED: dict[tuple[Kind, int, int, int], Tiling] = {
    ("project", 6144, 4096, 16): Tiling(16, 256, 1, 2, 4),
    ("add", 4096, 4096, 16): Tiling(64, 128, 3, 4, 4, first=True),
    ("gate", 14336, 4096, 16): Tiling(64, 64, 1, 4, 4, first=True, mapped=True),
    ("add", 4096, 14336, 16): Tiling(64, 128, 4, 4, 4, first=True, mapped=True),
    ("project", 6144, 4096, 32): Tiling(64, 128, 1, 4, 4, first=True),
    ("add", 4096, 4096, 32): Tiling(32, 128, 2, 4, 5),
    ("gate", 14336, 4096, 32): Tiling(64, 64, 1, 4, 4, first=True, mapped=True),
    ("add", 4096, 14336, 32): Tiling(64, 64, 4, 4, 5, first=True),
}
"""By what `benchmarks/gpu_few.py` found on an H200; arguments of `choose_tiling`."""


def choose_tiling(kind: Kind, outputs: int, inputs: int, height: int) -> Tiling:
    """The measured tiling of a shape, or else one by a rule."""
    return MEASURED.get((kind, outputs, inputs, height)) or tiling_by_rule(kind, outputs, inputs)


def tiling_by_rule(kind: Kind, outputs: int, inputs: int) -> Tiling:
    """Narrow tiles, so that all of the chip reads; where these are still few, inputs are shared among programs."""
    if kind == "gate":
        return Tiling(32, 128, stages=3)  # all programs at once for the MLP of 14,336 that this was thought out for
    tiles, blocks = -(-outputs // 32), -(-inputs // 256)
    if kind == "project":
        return Tiling(32, 256) if tiles >= PROCESSORS else Tiling(16, 256, warps=2)
    # Two programs to a multiprocessor, each with at least four tiles of weights in turn.
    return Tiling(32, 256, max(1, min(8, round(2 * PROCESSORS / tiles), blocks // 4)))


class Pending(NamedTuple):
    """The part of a norm that is yet to be done. squares: [parts, height] float32, of which every row's sum over H is
    the square of the rms that the row is to be divided by. norm: [H], the weight, which is in already."""

    squares: Tensor
    norm: Tensor


class Operand(NamedTuple):
    """What a product reads: x [T, in], and what x lacks of being normed."""

    x: Tensor
    pending: Pending | None = None


class FewProducts:
    """Launches of the kernels for one device. Calls read nothing back, so they can be part of a CUDA graph.

    early: kernels are set up while those before them still run. choose: the tilings, which a benchmark may bring.
    Products must not overlap: programs that share a tile count themselves in memory that all of them use in turn.
    """

    def __init__(self, device: torch.device, early: bool = False, choose: Choose = choose_tiling) -> None:
        self._early = early
        self._choose = choose
        self._arrivals = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
        self._kernels = import_module("overdrive.device.cuda.few_kernels")

    def project(self, operand: Operand, linear: DenseLinear, eps: float) -> Tensor:
        """linear(x), or of its norm: a new [T, out]. eps: of the norm."""
        return self._multiply("project", self._kernels.project_kernel, operand, linear, eps)

    def gate(self, operand: Operand, linear: DenseLinear, eps: float) -> Tensor:
        """silu(gate) * up of the same, for outputs (gate, up): a new [T, out / 2]."""
        return self._multiply("gate", self._kernels.gate_kernel, operand, linear, eps)

    def _multiply(self, kind: Kind, kernel: Any, operand: Operand, linear: DenseLinear, eps: float) -> Tensor:
        (x, pending), rows = operand, len(operand.x)
        squares = x if pending is None else pending.squares
        height, outputs = _height(rows), len(linear.weight) // (2 if kind == "gate" else 1)
        tiling = self._choose(kind, outputs, x.shape[1], height)
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        parts = 1 if pending is None else len(squares)
        kernel[(-(-outputs // tiling.width),)](
            out, x, *_weights(linear, tiling), squares, rows, x.stride(0), eps,
            NORMED=pending is not None, PARTS=parts, SPACE=power_of_two(parts), OUTPUTS=outputs,
            **self._constants(linear, tiling, height),
        )  # fmt: skip
        return out

    def add(self, residual: Tensor, linear: DenseLinear, x: Tensor, norm: Tensor) -> Operand:
        """Add linear(x) to the residual [T, out], contiguous, in place; what the norm of weight `norm` [out] reads."""
        rows, outputs = residual.shape
        height = _height(rows)
        tiling = self._choose("add", outputs, x.shape[1], height)
        tiles = -(-outputs // tiling.width)
        scaled = torch.empty_like(residual)
        squares = torch.empty((tiles, height), dtype=torch.float32, device=x.device)
        parts = squares.new_empty((tiling.splits if tiling.splits > 1 else 0, height, outputs))
        self._kernels.add_kernel[(tiles, tiling.splits)](
            residual, scaled, squares, x, *_weights(linear, tiling), norm, parts, self._arrivals, rows, x.stride(0),
            SPLITS=tiling.splits, OUTPUTS=outputs, **self._constants(linear, tiling, height),
        )  # fmt: skip
        return Operand(scaled, Pending(squares, norm))

    def _constants(self, linear: DenseLinear, tiling: Tiling, height: int) -> dict[str, Any]:
        return {
            "EARLY": self._early,
            "AHEAD": tiling.ahead,
            "MAPPED": tiling.mapped,
            "FIRST": tiling.first,
            "BIASED": linear.bias is not None,
            # A residual's elements may be large; times a gain, and not yet over their rms, they must fit float16.
            "SHRINK": 1 / 16 if linear.weight.dtype == torch.float16 else 1.0,
            "INPUTS": linear.weight.shape[1],
            "HEIGHT": height,
            "WIDTH": tiling.width,
            "DEPTH": tiling.depth,
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
            "launch_pdl": self._early,
        }


def takes(linear: Linear, x: Tensor) -> TypeGuard[DenseLinear]:
    """Whether x [T, in] can be multiplied here: by a plain weight in half precision, T of few."""
    return (
        isinstance(linear, DenseLinear)
        and 0 < len(x) <= HEIGHTS[-1]
        and x.dtype == linear.weight.dtype
        and x.dtype in DTYPES
        and x.stride(1) == 1
        and linear.weight.is_contiguous()
    )


def most_tokens(dtype: torch.dtype, device: torch.device) -> int:
    """Of steps that are made here: none where the kernels were not measured or do not compute."""
    if dtype not in DTYPES or (device.type == "cuda" and torch.cuda.get_device_capability(device) < CAPABILITY):
        return 0
    return MOST_TOKENS


def _height(rows: int) -> int:
    return next(height for height in HEIGHTS if rows <= height)


def _weights(linear: DenseLinear, tiling: Tiling) -> tuple[Tensor, object, Tensor]:
    """Weight, what its tiles are read through, and bias or something in its place, as the kernels take them."""
    weight, bias = linear.weight, linear.weight if linear.bias is None else linear.bias
    if not tiling.mapped:
        return weight, weight, bias
    from triton.tools.tensor_descriptor import TensorDescriptor

    return weight, TensorDescriptor.from_tensor(weight, [tiling.width, tiling.depth]), bias


class FewResidual:
    """`Residual` by `FewProducts`. Linears of other forms than a plain weight are called as they are.

    ops: for those, and for a norm that no product follows. value, x, eps: as of `NormedResidual`; value contiguous.
    """

    __slots__ = ("_eps", "_operand", "_ops", "_products", "value")

    def __init__(self, products: FewProducts, ops: Ops, value: Tensor, x: Tensor, eps: float) -> None:
        self.value = value
        self._products = products
        self._ops = ops
        self._operand = Operand(x)
        self._eps = eps

    def project(self, linear: Linear) -> Tensor:
        if takes(linear, self._operand.x):
            return self._products.project(self._operand, linear, self._eps)
        return linear(self.normed())

    def gate(self, linear: Linear) -> Tensor:
        if takes(linear, self._operand.x):
            return self._products.gate(self._operand, linear, self._eps)
        return self._ops.silu_mul(linear(self.normed()))

    def add(self, linear: Linear, x: Tensor, norm: Tensor) -> None:
        if takes(linear, x):
            self._operand = self._products.add(self.value, linear, x, norm)
        else:
            self._operand = Operand(self._ops.add_rms_norm(self.value, linear(x), norm, self._eps))

    def normed(self) -> Tensor:
        x, pending = self._operand
        return x if pending is None else self._ops.rms_norm(self.value, pending.norm, self._eps)
