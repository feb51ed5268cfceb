"""Linears for CUDA other than the plain product: the output head, and weights kept in 8 or 4 bits.

Each takes its weight dense, on the device, and quantises it there. Calls read nothing back, so they can be part of a
CUDA graph. On CPU tensors each computes the same in plain torch, which is what the device's products are compared with;
torch and Triton are all they need.
"""

from __future__ import annotations

from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.device.cuda.ops import norm_warps
from overdrive.errors import OverdriveError
from overdrive.model.transformer import Linear

FP8 = torch.float8_e4m3fn
FP8_LARGEST = 448.0
FP8_MULTIPLE = 16
"""Widths that the scaled product takes are multiples of this."""
INT4_GROUPS = (128, 64, 32)
"""Inputs that share a scale: the widest group that a layer's width is a multiple of."""


class ScoringLinear:
    """A `Linear` of half-precision weights [out, in] whose float32 sums are not rounded: close scores stay apart."""

    __slots__ = ("_columns", "_product", "weight")

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._columns = weight.t()
        half = weight.dtype in (torch.bfloat16, torch.float16)
        self._product = _unrounded if half and weight.is_cuda else _widened

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, out] float32."""
        return self._product(x, self._columns)


def _unrounded(x: Tensor, columns: Tensor) -> Tensor:
    return torch.mm(x, columns, out_dtype=torch.float32)


def _widened(x: Tensor, columns: Tensor) -> Tensor:
    """Where the library has no product with wider results: rounded first."""
    return (x @ columns).float()


class BlockedLinear:
    """Another linear over blocks of `ROWS` rows, the last one filled up with zeros: always a product of one shape.

    A library picks its kernel, and with it the order of additions, by shape. So a row's result depends on neither how
    many others there are nor where among them it stands.
    """

    ROWS = 128

    __slots__ = ("_linear",)

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, -len(x) % self.ROWS))
        return torch.cat([self._linear(block) for block in padded.split(self.ROWS)])[: len(x)]


class Fp8Linear:
    """Weights in float8 (e4m3) with a scale per output, inputs quantised with a scale per row as they come.

    weight: [out, in], both multiples of 16. bias: [out] or none. Results are bfloat16, as the scaled product gives
    them. Raises OverdriveError for other widths.
    """

    __slots__ = ("_bias", "_codes", "_scales")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        _check_multiple("fp8", FP8_MULTIPLE, *weight.shape)
        self._codes, self._scales = quantise_fp8(weight)  # [out, in], [out, 1]
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y = self._multiply(*_quantise_fp8_on_device(x)) if x.is_cuda else self._multiply_widened(*quantise_fp8(x))
        return y if self._bias is None else y + self._bias

    def _multiply(self, codes: Tensor, scales: Tensor) -> Tensor:
        return torch._scaled_mm(
            codes,
            self._codes.t(),
            scale_a=scales,
            scale_b=self._scales.t(),
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    def _multiply_widened(self, codes: Tensor, scales: Tensor) -> Tensor:
        return ((codes.float() @ self._codes.float().t()) * scales * self._scales.t()).bfloat16()


def quantise_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, W] as float8 codes [T, W] and scales [T, 1] float32: a row's largest element becomes the largest code."""
    values = x.float()
    scales = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / FP8_LARGEST
    return (values / scales).to(FP8), scales


def _quantise_fp8_on_device(x: Tensor) -> tuple[Tensor, Tensor]:
    """`quantise_fp8` in one launch."""
    rows, width = x.shape
    codes = torch.empty((rows, width), dtype=FP8, device=x.device)
    scales = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    block = 1 << (width - 1).bit_length()
    kernels = import_module("overdrive.device.cuda.linear_kernels")
    kernels.quantise_rows[(rows,)](
        x, codes, scales, x.stride(0), width, block, FP8_LARGEST, num_warps=norm_warps(block)
    )
    return codes, scales


class Int8Linear:
    """Weights in int8 with a scale per output, inputs as they are.

    weight: [out, in]; bias: [out] or none. Results have the inputs' type.
    """

    __slots__ = ("_bias", "_codes", "_scales")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        values = weight.float()
        self._scales = values.abs().amax(dim=1).clamp(min=1e-12) / 127  # [out]
        self._codes = (values / self._scales[:, None]).round().to(torch.int8)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y = multiply_int8(x, self._codes, self._scales) if x.is_cuda else self._multiply_widened(x)
        return y if self._bias is None else y + self._bias

    def _multiply_widened(self, x: Tensor) -> Tensor:
        return ((x.float() @ self._codes.float().t()) * self._scales).to(x.dtype)


def multiply_int8(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """x [T, in] @ codes.T * scales by the Triton kernel: [T, out] in x's type."""
    rows, (outputs, inputs) = len(x), codes.shape
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    height, width, depth, warps, stages = int8_tile(rows)
    grid = (-(-outputs // width), -(-rows // height))
    kernels = import_module("overdrive.device.cuda.linear_kernels")
    kernels.multiply_int8[grid](
        x,
        codes,
        scales,
        y,
        rows,
        x.stride(0),
        outputs,
        inputs,
        height,
        width,
        depth,
        num_warps=warps,
        num_stages=stages,
    )
    return y


def int8_tile(rows: int) -> tuple[int, int, int, int, int]:
    """Rows, outputs and inputs of a tile, warps and stages. Few rows: narrow tiles, so that all of the chip reads.

    Within the 99 KiB of shared memory that smaller GPUs than Hopper's give a program.
    """
    if rows <= 16:
        return 16, 32, 256, 4, 4
    if rows <= 64:
        return 64, 64, 128, 4, 3
    return 128, 128, 64, 8, 3


class Int4Linear:
    """Weights in 4 bits with a scale and a least value for every group of inputs, inputs as they are.

    weight: [out, in], in a multiple of 32; bias: [out] or none. Results have the inputs' type. Raises OverdriveError
    for other widths.
    """

    __slots__ = ("_bias", "_codes", "_group", "_least", "_scales")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        _check_multiple("int4", INT4_GROUPS[-1], weight.shape[1])
        self._group = next(group for group in INT4_GROUPS if weight.shape[1] % group == 0)
        self._codes, self._scales, self._least = quantise_int4(weight, self._group)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        codes, scales, least, group = self._codes, self._scales, self._least, self._group
        if x.is_cuda:
            y = multiply_int4(x, codes, scales, least, group)
        else:
            y = F.linear(x, dequantise_int4(codes, scales, least, group).to(x.dtype))
        return y if self._bias is None else y + self._bias


def quantise_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """weight [out, in] as codes [out, in / 2] uint8, and scales and least values [in / group, out] float32.

    A code c of 0 .. 15 means c * scale + least. A group's byte i holds the codes of its inputs i and group / 2 + i, the
    first in the lower half: both halves of a tile of bytes are then runs of inputs.
    """
    outputs, inputs = weight.shape
    groups = weight.float().reshape(outputs, inputs // group, group)
    low, high = groups.aminmax(dim=2)
    scales = (high - low).clamp(min=1e-12) / 15
    codes = ((groups - low[..., None]) / scales[..., None]).round().to(torch.uint8)
    first, second = codes.chunk(2, dim=2)
    packed = (first | second << 4).reshape(outputs, inputs // 2)
    return packed, scales.t().contiguous(), low.t().contiguous()


def dequantise_int4(codes: Tensor, scales: Tensor, least: Tensor, group: int) -> Tensor:
    """The weight [out, in] that codes mean, float32."""
    packed = codes.reshape(len(codes), -1, group // 2)
    values = torch.cat((packed & 15, packed >> 4), dim=2).float()
    return (values * scales.t()[..., None] + least.t()[..., None]).reshape(len(codes), -1)


def multiply_int4(x: Tensor, codes: Tensor, scales: Tensor, least: Tensor, group: int) -> Tensor:
    """x [T, in] by the weight of `dequantise_int4`, by the Triton kernel: [T, out] in x's type."""
    (rows, inputs), outputs = x.shape, len(codes)
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    height, width, warps, stages = int4_tile(rows)
    grid = (-(-outputs // width), -(-rows // height))
    kernels = import_module("overdrive.device.cuda.linear_kernels")
    kernels.multiply_int4[grid](
        x, codes, scales, least, y, rows, x.stride(0), outputs, inputs, group, height, width,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


def int4_tile(rows: int) -> tuple[int, int, int, int]:
    """Rows and outputs of a tile, warps and stages, within the same bounds; its inputs are a group."""
    if rows <= 16:
        return 16, 32, 4, 4
    if rows <= 64:
        return 64, 64, 4, 3
    return 128, 128, 8, 2


def _check_multiple(precision: str, multiple: int, *widths: int) -> None:
    for width in widths:
        if width % multiple:
            raise OverdriveError(
                f"precision {precision!r} needs layer widths divisible by {multiple} on CUDA; this model has {width}"
            )
