"""Which form the weights take on the device: what each `Precision` means, for float and for quantised checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import gguf
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from overdrive.config import Precision
from overdrive.device.cpu.elementwise import CpuOps
from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.packing import Packed, pack_float32, pack_gguf, pack_int8
from overdrive.device.cpu.team import Team
from overdrive.errors import OverdriveError
from overdrive.model.assemble import Blocks, Form, LinearFactory, dense_factory
from overdrive.model.gguf import GGUFBlocks
from overdrive.model.ops import TorchOps
from overdrive.model.transformer import Linear

_INT4 = GGMLQuantizationType.Q4_1  # 4-bit codes with a scale and a minimum for every 32 weights
_INT4_BLOCK = 32


def torch_form(precision: Precision, device: torch.device) -> Form:
    """Plain torch on any device: the reference. Raises OverdriveError for a precision that needs packed weights."""
    if precision in ("int8", "int4"):
        raise OverdriveError(f"precision {precision!r} needs the CPU kernels; plain torch takes float32 or float64")
    dtype = torch.float64 if precision == "float64" else torch.float32
    return Form(dtype, device, dense_factory(dtype, device), TorchOps(dtype, device))


def cpu_form(precision: Precision, team: Team) -> Form:
    """The CPU's kernels, run by `team`; float64 is left to plain torch.

    auto: a quantised checkpoint keeps its own blocks, a float one becomes int8 with a scale per output row.
    """
    device = torch.device("cpu")
    if precision == "float64":
        return torch_form(precision, device)
    pack = {"auto": pack_auto, "float32": pack_as_float32, "int8": pack_as_int8, "int4": pack_as_int4}[precision]
    return Form(torch.float32, device, packed_factory(LinearKernels(team), pack), CpuOps(team))


class JoinedLinear:
    """Several linears on one input as one: their outputs side by side. For weights whose formats cannot be stacked."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = tuple(parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


Pack = Callable[[Tensor | Blocks], Packed]


def packed_factory(kernels: LinearKernels, pack: Pack) -> LinearFactory:
    """Linears over packed weights. Weights that share an input and a format are stacked before they are packed."""

    def make(weights: Sequence[Tensor | Blocks], bias: Tensor | None) -> Linear:
        stacks = [_stack(list(alike)) for _, alike in groupby(weights, key=_format)]
        sizes = [stack.shape[0] for stack in stacks]
        biases = bias.split(sizes) if bias is not None else [None] * len(stacks)
        parts = [PackedLinear(kernels, pack(w), b) for w, b in zip(stacks, biases, strict=True)]
        return parts[0] if len(parts) == 1 else JoinedLinear(parts)

    return make


def _format(weight: Tensor | Blocks) -> object:
    return weight.kind if isinstance(weight, GGUFBlocks) else type(weight)


def _stack(weights: Sequence[Tensor | Blocks]) -> Tensor | Blocks:
    """Weights of one format, [out_i, in] each, as one [sum of out_i, in]."""
    first = weights[0]
    if isinstance(first, GGUFBlocks):
        return first.stacked([w for w in weights[1:] if isinstance(w, GGUFBlocks)])
    return torch.cat([_dense(w) for w in weights])


def _dense(weight: Tensor | Blocks) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dense()


def pack_auto(weight: Tensor | Blocks) -> Packed:
    if isinstance(weight, GGUFBlocks):
        return pack_gguf(weight.data, weight.kind, *weight.shape)
    return pack_as_int8(weight)


def pack_as_float32(weight: Tensor | Blocks) -> Packed:
    return pack_float32(_dense(weight))


def pack_as_int8(weight: Tensor | Blocks) -> Packed:
    return pack_int8(_dense(weight))


def pack_as_int4(weight: Tensor | Blocks) -> Packed:
    rows, columns = weight.shape
    if columns % _INT4_BLOCK:
        raise OverdriveError(
            f"precision 'int4' needs layer widths divisible by {_INT4_BLOCK}; this model has {columns}"
        )
    return pack_gguf(gguf.quantize(_dense(weight).float().numpy(), _INT4), _INT4, rows, columns)
