"""Which form the weights take on the device: what each `Precision` means, for float and for quantised checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from overdrive.device.cuda.linear import BlockedLinear, Fp8Linear, Int4Linear, Int8Linear, ScoringLinear
from overdrive.device.cuda.ops import FLOATS, CudaOps
from overdrive.errors import OverdriveError
from overdrive.model.assemble import (
    Blocks,
    Form,
    LinearFactory,
    dense_factory,
    dense_weight,
    parameter_counts,
    stack_dense,
)
from overdrive.model.config import ModelConfig
from overdrive.model.gguf import GGUFBlocks
from overdrive.model.ops import TorchOps
from overdrive.model.transformer import Linear

_INT4 = GGMLQuantizationType.Q4_1  # 4-bit codes with a scale and a minimum for every 32 weights
_INT4_BLOCK = 32


_CUDA_DTYPES: dict[Precision, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
}
_CUDA_LINEARS: dict[Precision, Callable[[Tensor, Tensor | None], Linear]] = {
    "fp8": Fp8Linear,
    "int8": Int8Linear,
    "int4": Int4Linear,
}
_CUDA_BITS: dict[Precision, float] = {"fp8": 8, "int8": 8, "int4": 4.5}  # of a layer's weight, with its scales
_FP8_CAPABILITY = (8, 9)
_CUDA_ONLY = ("bfloat16", "float16", "fp8")


def form_for(precision: Precision, device: torch.device, team: Team | None, deterministic: bool = False) -> Form:
    """The form that a precision means on a device. team: the threads of the CPU's kernels; None there: plain torch.

    deterministic: on CUDA, products are made in blocks of one size (`BlockedLinear`).
    """
    if device.type == "cuda":
        form = cuda_form(precision, device)
        return blocked(form) if deterministic else form
    return cpu_form(precision, team) if team else torch_form(precision, device)


def precision_meant(precision: Precision, device: torch.device, blocks: bool) -> str:
    """What the weights are served in, for people. blocks: whether the model comes in 4- to 8-bit blocks of a .gguf."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16"
    return "gguf blocks" if blocks else "int8"


def torch_form(precision: Precision, device: torch.device) -> Form:
    """Plain torch on any device: the reference. Raises OverdriveError for a precision that needs kernels."""
    _refuse_cuda_only(precision)
    if precision in ("int8", "int4"):
        raise OverdriveError(f"precision {precision!r} needs the CPU kernels; plain torch takes float32 or float64")
    dtype = torch.float64 if precision == "float64" else torch.float32
    dense = dense_factory(dtype, device)
    return Form(dtype, device, dense, TorchOps(dtype, device), dense)


def cuda_form(precision: Precision, device: torch.device) -> Form:
    """The CUDA kernels and the library's products.

    auto: bfloat16, into which the blocks of a quantised checkpoint are decoded. fp8, int8 and int4 are forms of the
    layers' weights: embedding, head and activations are bfloat16 then. Scores are float32 or better whatever the form.
    On a CPU `device` the same in plain torch, which is how the CUDA engine is tested without a GPU. Raises
    OverdriveError for fp8 on a GPU that has no such products.
    """
    if precision == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise OverdriveError(f"precision 'fp8' needs a GPU of compute capability 8.9 or more; {device} has less")
    dtype = _CUDA_DTYPES.get(precision, torch.bfloat16)
    kernels = device.type == "cuda" and dtype in FLOATS
    ops = CudaOps(dtype, device) if kernels else TorchOps(dtype, device)
    dense = dense_factory(dtype, device)
    linears = quantised_factory(_CUDA_LINEARS[precision], dtype, device) if precision in _CUDA_LINEARS else dense
    half = dtype in (torch.bfloat16, torch.float16)
    return Form(dtype, device, linears, ops, scoring_factory(dtype, device) if half else dense)


def cuda_bytes(config: ModelConfig, precision: Precision, ranks: int = 1) -> int:
    """Bytes that a model's weights take on each of so many devices in `cuda_form`, at most, without the devices."""
    itemsize = _CUDA_DTYPES.get(precision, torch.bfloat16).itemsize
    inside, elsewhere = parameter_counts(config)
    return int(inside * _CUDA_BITS.get(precision, 8 * itemsize) / (8 * ranks)) + elsewhere * itemsize


def quantised_factory(
    kind: Callable[[Tensor, Tensor | None], Linear], dtype: torch.dtype, device: torch.device
) -> LinearFactory:
    """Linears that quantise their weights on the device, each when it is made: one dense weight is there at a time."""

    def make(weights: Sequence[Tensor | Blocks], bias: Tensor | None) -> Linear:
        return kind(stack_dense(weights, dtype, device), bias)

    return make


def scoring_factory(dtype: torch.dtype, device: torch.device) -> LinearFactory:
    """Heads of half-precision weights without a bias, whose scores are float32."""

    def make(weights: Sequence[Tensor | Blocks], bias: Tensor | None) -> Linear:
        return ScoringLinear(stack_dense(weights, dtype, device))

    return make


def cpu_form(precision: Precision, team: Team) -> Form:
    """The CPU's kernels, run by `team`; float64 is left to plain torch.

    auto: a quantised checkpoint keeps its own blocks, a float one becomes int8 with a scale per output row.
    """
    device = torch.device("cpu")
    _refuse_cuda_only(precision)
    if precision == "float64":
        return torch_form(precision, device)
    packs = {"auto": pack_auto, "float32": pack_as_float32, "int8": pack_as_int8, "int4": pack_as_int4}
    packed = packed_factory(LinearKernels(team), packs[precision])
    return Form(torch.float32, device, packed, CpuOps(team), packed)


def _refuse_cuda_only(precision: Precision) -> None:
    if precision in _CUDA_ONLY:
        raise OverdriveError(f"precision {precision!r} is for CUDA; a CPU takes auto, float32, float64, int8 or int4")


def blocked(form: Form) -> Form:
    """The same with every product made in blocks of one size."""

    def around(factory: LinearFactory) -> LinearFactory:
        return lambda weights, bias: BlockedLinear(factory(weights, bias))

    return replace(form, make_linear=around(form.make_linear), make_head=around(form.make_head))


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
    return torch.cat([dense_weight(w) for w in weights])


def pack_auto(weight: Tensor | Blocks) -> Packed:
    if isinstance(weight, GGUFBlocks):
        return pack_gguf(weight.data, weight.kind, *weight.shape)
    return pack_as_int8(weight)


def pack_as_float32(weight: Tensor | Blocks) -> Packed:
    return pack_float32(dense_weight(weight))


def pack_as_int8(weight: Tensor | Blocks) -> Packed:
    return pack_int8(dense_weight(weight))


def pack_as_int4(weight: Tensor | Blocks) -> Packed:
    rows, columns = weight.shape
    if columns % _INT4_BLOCK:
        raise OverdriveError(
            f"precision 'int4' needs layer widths divisible by {_INT4_BLOCK}; this model has {columns}"
        )
    return pack_gguf(gguf.quantize(dense_weight(weight).float().numpy(), _INT4), _INT4, rows, columns)
