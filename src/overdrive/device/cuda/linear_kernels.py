"""Triton kernels around quantised weights. Imported only where Triton is; `linear.py` has their torch forms."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantise_rows(x, codes, scales, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr):
    """codes[t] = x[t] / scales[t] in float8, so that a row's largest element becomes LARGEST. Grid: (T,)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(x + token * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0), 1e-12) / LARGEST
    tl.store(scales + token, scale)
    tl.store(codes + token * WIDTH + columns, (values / scale).to(codes.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def multiply_int8(
    x, codes, scales, out, rows, x_stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """out [T, OUTPUTS] = x [T, INPUTS] @ codes.T * scales. codes: [OUTPUTS, INPUTS] int8, scales: [OUTPUTS] float32.

    Weights become x's type on the way, which holds every int8 exactly; sums are float32. Grid: (parts of the outputs,
    parts of the rows).
    """
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_INPUTS)
    x_row = x + row.to(tl.int64)[:, None] * x_stride
    code_row = codes + output.to(tl.int64)[None, :] * INPUTS
    total = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    for begin in range(0, INPUTS, BLOCK_INPUTS):
        at = begin + column
        rows_inside = (row < rows)[:, None] & (at < INPUTS)[None, :]
        codes_inside = (at < INPUTS)[:, None] & (output < OUTPUTS)[None, :]
        values = tl.load(x_row + at[None, :], mask=rows_inside, other=0.0)
        weights = tl.load(code_row + at[:, None], mask=codes_inside, other=0).to(x.dtype.element_ty)
        total = tl.dot(values, weights, total)
    scale = tl.load(scales + output, mask=output < OUTPUTS, other=0.0)
    target = out + row.to(tl.int64)[:, None] * OUTPUTS + output[None, :]
    inside = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    tl.store(target, (total * scale[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def multiply_int4(
    x, codes, scales, least, out, rows, x_stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """out [T, OUTPUTS] = x [T, INPUTS] @ weight.T, where a code c of a group means c * scale + least.

    codes: [OUTPUTS, INPUTS / 2] uint8; a group's byte i holds its inputs i (lower half) and GROUP / 2 + i. scales,
    least: [INPUTS / GROUP, OUTPUTS] float32. Weights are rounded to x's type. Grid: as above.
    """
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    HALF: tl.constexpr = GROUP // 2
    column = tl.arange(0, HALF)
    outputs_inside = output < OUTPUTS
    x_row = x + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    code_row = codes + output.to(tl.int64)[None, :] * (INPUTS // 2) + column[:, None]
    total = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    for group in range(INPUTS // GROUP):
        packed = tl.load(code_row + group * HALF, mask=outputs_inside[None, :], other=0)
        scale = tl.load(scales + group * OUTPUTS + output, mask=outputs_inside, other=0.0)[None, :]
        low = tl.load(least + group * OUTPUTS + output, mask=outputs_inside, other=0.0)[None, :]
        first = tl.load(x_row + group * GROUP, mask=(row < rows)[:, None], other=0.0)
        second = tl.load(x_row + group * GROUP + HALF, mask=(row < rows)[:, None], other=0.0)
        total = tl.dot(first, ((packed & 15).to(tl.float32) * scale + low).to(x.dtype.element_ty), total)
        total = tl.dot(second, ((packed >> 4).to(tl.float32) * scale + low).to(x.dtype.element_ty), total)
    target = out + row.to(tl.int64)[:, None] * OUTPUTS + output[None, :]
    inside = (row < rows)[:, None] & outputs_inside[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)
