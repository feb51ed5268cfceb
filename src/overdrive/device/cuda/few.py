"""A decoder's products for steps of few tokens, where nothing counts but how fast weights are read.

They round where `CudaOps` and the library do, and differ from these in the order of additions alone. A row's results
depend on neither the other rows nor, within `HEIGHTS`, their number.
Knows weights and tilings; the arithmetic is in `few_kernels`, which is imported when the first `FewProducts` is made.
On CPU tensors the kernels run in Triton's interpreter alone; a `DenseLinear` in plain torch is their reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor

from overdrive.model.transformer import DenseLinear, Linear

HEIGHTS = (16, 32)
"""Rows of a tile: the least that tensor cores multiply, and two of those."""
MOST_TOKENS = 32
"""Of a step whose products are made here, at most the largest of `HEIGHTS`; 0 leaves all to the library."""
DTYPES = (torch.bfloat16, torch.float16)
CAPABILITY = (9, 0)
"""Of the devices on which this was measured to pay; others keep to the library."""
MOST_TILES = 4096
"""Of a product whose inputs are shared among programs: its outputs over those of a tile."""
LEAST_ROOM = 99 << 10
"""Bytes of shared memory that a program may have on the smallest of the devices that have tensor cores."""
OWN_BYTES = 2 << 10
"""Of that, what is not tiles."""
PROCESSORS = 132
"""That the rule for shapes without a measured tiling has in mind. A constant: results depend on tilings."""

Kind = Literal["project", "gate"]


class Tiling(NamedTuple):
    """How a product is divided. width, depth: outputs and inputs of a tile of weights. splits: programs that share the
    inputs, of "project" alone. warps, stages: of a program. first, mapped: FIRST and MAPPED of the kernels.
    """

    width: int
    depth: int
    splits: int = 1
    warps: int = 4
    stages: int = 4
    first: bool = False
    mapped: bool = False

    def shared_bytes(self, kind: Kind, height: int) -> int:
        """Shared memory of a program: so many tiles of both operands, of elements of two bytes, are there at once."""
        rows = height + self.width * (2 if kind == "gate" else 1)
        return 2 * rows * self.depth * (self.stages if self.first else self.stages - 1)


Choose = Callable[[Kind, int, int, int], Tiling]
"""choose(kind, outputs, inputs, height): outputs are those that come out, half the weight's of a "gate"."""

MEASURED: dict[tuple[Kind, int, int, int], Tiling] = {
    ("project", 6144, 4096, 16): Tiling(64, 128, 2, 4, 4, first=True, mapped=True),
    ("project", 4096, 4096, 16): Tiling(16, 256, 1, 2, 4),
    ("gate", 14336, 4096, 16): Tiling(64, 128, 1, 4, 3, first=True, mapped=True),
    ("project", 4096, 14336, 16): Tiling(64, 128, 4, 4, 3, first=True, mapped=True),
    ("project", 6144, 4096, 32): Tiling(64, 256, 1, 4, 3, first=True),
    ("project", 4096, 4096, 32): Tiling(64, 128, 2, 4, 4, first=True),
    ("gate", 14336, 4096, 32): Tiling(64, 128, 1, 4, 4, first=True, mapped=True),
    ("project", 4096, 14336, 32): Tiling(64, 128, 4, 4, 3, first=True),
}
"""By what `benchmarks/gpu_few.py` found on an H200; arguments of `choose_tiling`."""


def choose_tiling(kind: Kind, outputs: int, inputs: int, height: int, room: int = LEAST_ROOM) -> Tiling:
    """The measured tiling of a shape where there is room for it, or else one by a rule.

    room: bytes of shared memory that a program may have.
    """
    measured = MEASURED.get((kind, outputs, inputs, height))
    if measured is not None and measured.shared_bytes(kind, height) <= room:
        return measured
    return tiling_by_rule(kind, outputs, inputs)


def room_of(device: torch.device) -> int:
    """Bytes of shared memory that a program may have there, less what it takes for itself."""
    if device.type != "cuda":
        return LEAST_ROOM
    properties: Any = torch.cuda.get_device_properties(device)  # its stubs do not know all of them
    return max(LEAST_ROOM, properties.shared_memory_per_block_optin - OWN_BYTES)


def tiling_by_rule(kind: Kind, outputs: int, inputs: int) -> Tiling:
    """Narrow tiles, so that all of the chip reads; where these are still few, inputs are shared among programs."""
    if kind == "gate":
        return Tiling(32, 128, stages=3)  # all programs at once for the MLP of 14,336 that this was thought out for
    tiles, blocks = -(-outputs // 32), -(-inputs // 256)
    # Two programs to a multiprocessor, each with at least four tiles of weights in turn.
    splits = max(1, min(8, round(2 * PROCESSORS / tiles), blocks // 4))
    return Tiling(16, 256, warps=2) if splits == 1 and tiles < PROCESSORS else Tiling(32, 256, splits)


class FewProducts:
    """Launches of the kernels for one device. Calls read nothing back, so they can be part of a CUDA graph.

    choose: the tilings, which a benchmark may bring; by default those that were measured, as far as there is room.
    Products must not overlap: programs that share a tile count themselves in memory that all of them use in turn.
    """

    def __init__(self, device: torch.device, choose: Choose | None = None) -> None:
        self._choose = choose or partial(choose_tiling, room=room_of(device))
        self._arrivals = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
        self._kernels = import_module("overdrive.device.cuda.few_kernels")

    def project(self, linear: DenseLinear, x: Tensor) -> Tensor:
        """linear(x): a new [T, out]."""
        rows, outputs = len(x), len(linear.weight)
        height = _height(rows)
        tiling = self._choose("project", outputs, x.shape[1], height)
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        shared = tiling.splits if tiling.splits > 1 else 0
        parts = torch.empty((shared, height, outputs), dtype=torch.float32, device=x.device)
        self._kernels.project_kernel[(-(-outputs // tiling.width), tiling.splits)](
            out, x, *_weights(linear, tiling), parts, self._arrivals, rows, x.stride(0),
            SPLITS=tiling.splits, OUTPUTS=outputs, **_constants(linear, tiling, height),
        )  # fmt: skip
        return out

    def gate(self, linear: DenseLinear, x: Tensor) -> Tensor:
        """silu(gate) * up, where linear(x) is (gate, up): a new [T, out / 2]."""
        rows, outputs = len(x), len(linear.weight) // 2
        height = _height(rows)
        tiling = self._choose("gate", outputs, x.shape[1], height)
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        self._kernels.gate_kernel[(-(-outputs // tiling.width),)](
            out, x, *_weights(linear, tiling), rows, x.stride(0),
            OUTPUTS=outputs, **_constants(linear, tiling, height),
        )  # fmt: skip
        return out


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


def _weights(linear: DenseLinear, tiling: Tiling) -> tuple[object, Tensor]:
    """What tiles of the weight are read through, and bias or something in its place, as the kernels take them."""
    weight, bias = linear.weight, linear.weight if linear.bias is None else linear.bias
    if not tiling.mapped:
        return weight, bias
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(weight, [tiling.width, tiling.depth]), bias


def _constants(linear: DenseLinear, tiling: Tiling, height: int) -> dict[str, Any]:
    return {
        "MAPPED": tiling.mapped,
        "FIRST": tiling.first,
        "BIASED": linear.bias is not None,
        "INPUTS": linear.weight.shape[1],
        "HEIGHT": height,
        "WIDTH": tiling.width,
        "DEPTH": tiling.depth,
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
    }
