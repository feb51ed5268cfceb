"""Triton kernels of a decoder's products for few tokens: they stream weights.

Imported only where Triton is. `few.py` launches them and chooses how they are divided. Knows tensors alone.

    project   out = x W^T + bias            gate   out = silu(x G^T + bias) * (x U^T + bias)

Sums are float32 and rounded to the type where the library's products and `ops_kernels` round, so that a token's values
depend on which of them made its step in nothing but the order of additions.

Names of compile-time constants: OUTPUTS and INPUTS of the weight [OUTPUTS, INPUTS]; HEIGHT rows, WIDTH outputs and
DEPTH inputs of a tile. FIRST: the weight is the first operand of the tensor cores' product, which needs WIDTH of 64 or
more to be the wider kind. MAPPED: weights come as a tensor descriptor (TMA) of tiles [WIDTH, DEPTH].

Which row, of how many, a row is changes nothing: every sum over inputs is in one order, that of the tiling.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overdrive.device.cuda.ops_kernels import gated


@triton.jit
def _load_weights(
    weights, first, block,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, MAPPED: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """[WIDTH, DEPTH] from row `first` and input block * DEPTH on. Nobody reads them again this pass.

    With WHOLE no tile reaches behind the weights' rows or columns; otherwise zero stands there.
    """
    if MAPPED:
        tile = weights.load([first, block * DEPTH])
    else:
        output, at = tl.arange(0, WIDTH), block * DEPTH + tl.arange(0, DEPTH)
        places = weights + first.to(tl.int64) * INPUTS + output[:, None] * INPUTS + at[None, :]
        if WHOLE:
            tile = tl.load(places, eviction_policy="evict_first")
        else:
            inside = (first + output < OUTPUTS)[:, None] & (at < INPUTS)[None, :]
            tile = tl.load(places, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _load_rows(x, x_stride, rows, block, INPUTS: tl.constexpr, HEIGHT: tl.constexpr, DEPTH: tl.constexpr):
    """[HEIGHT, DEPTH] of x from input block * DEPTH on, zero outside."""
    row, at = tl.arange(0, HEIGHT), block * DEPTH + tl.arange(0, DEPTH)
    inside = (row < rows)[:, None]
    if INPUTS % DEPTH != 0:
        inside = inside & (at < INPUTS)[None, :]
    return tl.load(x + row[:, None] * x_stride + at[None, :], mask=inside, other=0.0)


@triton.jit
def _zeros(HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr):
    """What `_multiply` adds to: sums by row, or with FIRST by output."""
    if FIRST:
        total = tl.zeros((WIDTH, HEIGHT), tl.float32)
    else:
        total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    return total


@triton.jit
def _multiply(values, tile, total, FIRST: tl.constexpr):
    """total + values [HEIGHT, DEPTH] @ tile [WIDTH, DEPTH].T."""
    if FIRST:
        total = tl.dot(tile, tl.trans(values), total, input_precision="ieee")
    else:
        total = tl.dot(values, tl.trans(tile), total, input_precision="ieee")
    return total


@triton.jit
def _by_row(total, FIRST: tl.constexpr):
    """Sums as [HEIGHT, WIDTH]."""
    if FIRST:
        total = tl.trans(total)
    return total


@triton.jit
def _biased(total, bias, first, OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, BIASED: tl.constexpr):
    """Sums [HEIGHT, WIDTH] of outputs from `first` on, and their bias."""
    if BIASED:
        output = first + tl.arange(0, WIDTH)
        total = total + tl.load(bias + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit
def _store(out, values, first, rows, OUTPUTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """values [HEIGHT, WIDTH] to out [T, OUTPUTS], outputs from `first` on, rounded to its type."""
    row, output = tl.arange(0, HEIGHT), first + tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    tl.store(out + row[:, None] * OUTPUTS + output[None, :], values.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def project_kernel(
    out, x, weights, bias, parts, arrivals, rows, x_stride,
    MAPPED: tl.constexpr, FIRST: tl.constexpr, BIASED: tl.constexpr, SPLITS: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out [T, OUTPUTS] = x [T, INPUTS] @ weights.T + bias, rounded once, over the grid (tiles of outputs, SPLITS).

    The programs of a tile have shares of the inputs and write parts [SPLITS, HEIGHT, OUTPUTS]; the last to come adds
    them up, in the order of the parts. arrivals [tiles] count, 0 between launches. One program has no need of either.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    first = tile * WIDTH
    BLOCKS: tl.constexpr = (INPUTS + DEPTH - 1) // DEPTH
    WHOLE: tl.constexpr = OUTPUTS % WIDTH == 0 and INPUTS % DEPTH == 0
    begin, end = 0, BLOCKS
    if SPLITS > 1:
        begin, end = split * BLOCKS // SPLITS, (split + 1) * BLOCKS // SPLITS
    total = _zeros(HEIGHT, WIDTH, FIRST)
    for block in tl.range(begin, end):
        values = _load_rows(x, x_stride, rows, block, INPUTS, HEIGHT, DEPTH)
        part = _load_weights(weights, first, block, OUTPUTS, INPUTS, WIDTH, DEPTH, MAPPED, WHOLE)
        total = _multiply(values, part, total, FIRST)
    total = _by_row(total, FIRST)
    if SPLITS > 1:
        row, output = tl.arange(0, HEIGHT), first + tl.arange(0, WIDTH)
        inside = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
        places = parts + row[:, None] * OUTPUTS + output[None, :]
        tl.store(places + split * (HEIGHT * OUTPUTS), total, mask=inside)
        tl.debug_barrier()  # what all threads stored stands before the one that counts it is released
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
            tl.store(arrivals + tile, 0)
            total = tl.zeros((HEIGHT, WIDTH), tl.float32)
            for number in tl.static_range(SPLITS):  # others wrote them in this launch: past the first-level cache
                total += tl.load(places + number * (HEIGHT * OUTPUTS), mask=inside, other=0.0, cache_modifier=".cg")
            total = _biased(total, bias, first, OUTPUTS, WIDTH, BIASED)
            _store(out, total, first, rows, OUTPUTS, HEIGHT, WIDTH)
    else:
        total = _biased(total, bias, first, OUTPUTS, WIDTH, BIASED)
        _store(out, total, first, rows, OUTPUTS, HEIGHT, WIDTH)


@triton.jit(do_not_specialize=["rows"])
def gate_kernel(
    out, x, weights, bias, rows, x_stride,
    MAPPED: tl.constexpr, FIRST: tl.constexpr, BIASED: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out [T, OUTPUTS] = silu(gate) * up of weights [2 * OUTPUTS, INPUTS], gate first, over the grid of tiles of `out`.

    A program multiplies WIDTH rows of the gate and those of up that belong to them.
    """
    first = tl.program_id(0) * WIDTH
    gate, up = _zeros(HEIGHT, WIDTH, FIRST), _zeros(HEIGHT, WIDTH, FIRST)
    WHOLE: tl.constexpr = OUTPUTS % WIDTH == 0 and INPUTS % DEPTH == 0
    for block in tl.range(0, (INPUTS + DEPTH - 1) // DEPTH):
        values = _load_rows(x, x_stride, rows, block, INPUTS, HEIGHT, DEPTH)
        tile = _load_weights(weights, first, block, 2 * OUTPUTS, INPUTS, WIDTH, DEPTH, MAPPED, WHOLE)
        gate = _multiply(values, tile, gate, FIRST)
        tile = _load_weights(weights, first + OUTPUTS, block, 2 * OUTPUTS, INPUTS, WIDTH, DEPTH, MAPPED, WHOLE)
        up = _multiply(values, tile, up, FIRST)
    kind = out.dtype.element_ty
    gate = _biased(_by_row(gate, FIRST), bias, first, OUTPUTS, WIDTH, BIASED).to(kind)
    up = _biased(_by_row(up, FIRST), bias + OUTPUTS, first, OUTPUTS, WIDTH, BIASED).to(kind)
    _store(out, gated(gate, up), first, rows, OUTPUTS, HEIGHT, WIDTH)
