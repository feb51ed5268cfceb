"""Triton kernels of a decoder's products for few tokens: they stream weights, and do what surrounds them on the way.

Imported only where Triton is. `few.py` launches them and has their torch forms. Knows tensors alone.

    project   out = norm(x) W^T + bias            gate   out = silu(norm(x) G^T) * (norm(x) U^T)
    add       residual += x W^T + bias, and what the next norm needs of the sum

A norm is never a pass of its own: `add` leaves the sum times the norm's gain, rounded, and the sums of squares of every
tile of its columns; whoever multiplies that scales its sums by the rows' rms at the end, since a row's scale commutes
with a product. Inputs that are normed already come without squares.

Names of compile-time constants: OUTPUTS and INPUTS of the weight [OUTPUTS, INPUTS]; HEIGHT rows, WIDTH outputs and
DEPTH inputs of a tile; PARTS sums of squares of a row; SHRINK what gains are multiplied by, so that products with them
stay within the type. FIRST: the weight is the first operand of the tensor cores' product, which needs WIDTH of 64 or
more to be the wider kind. MAPPED: weights are read through a tensor descriptor (TMA). EARLY: set up while the kernel
before still runs (programmatic dependent launch): weights depend on none, so their first AHEAD tiles are fetched into
the second-level cache before that kernel's end is awaited.

Which row, of how many, a row is changes nothing: every sum over inputs or parts is in one order, that of the tiling.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LINE = tl.constexpr(64)
"""Elements of 2 bytes in a line of the second-level cache."""


@triton.jit
def _fetch_ahead(
    weights, first, begin,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Ask for tiles begin .. begin + AHEAD - 1 of WIDTH rows of weights from row `first` on."""
    LINES: tl.constexpr = DEPTH * AHEAD // LINE if DEPTH * AHEAD >= LINE else 1
    output = first + tl.arange(0, WIDTH)
    # Rows and columns behind the end are others' or asked for twice; none is behind the weights' end.
    output = tl.minimum(output, OUTPUTS - 1)
    at = tl.minimum(begin * DEPTH + tl.arange(0, LINES) * LINE, INPUTS - 1)
    places = weights + output.to(tl.int64)[:, None] * INPUTS + at[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _await_previous(EARLY: tl.constexpr):
    """With EARLY: nothing that changes is touched before the kernel before has ended; the one after may be set up."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


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
def _load_squares(squares, rows, PARTS: tl.constexpr, SPACE: tl.constexpr, HEIGHT: tl.constexpr, NORMED: tl.constexpr):
    """[SPACE, HEIGHT] sums of squares by part and row, PARTS of them; without NORMED nothing that is used.

    They are asked for before the weights and added up behind them, so that nobody waits for them.
    """
    if NORMED:
        part, row = tl.arange(0, SPACE), tl.arange(0, HEIGHT)
        stands = (part < PARTS)[:, None] & (row < rows)[None, :]
        sums = tl.load(squares + part[:, None] * HEIGHT + row[None, :], mask=stands, other=0.0)
    else:
        sums = tl.zeros((1, HEIGHT), tl.float32)
    return sums


@triton.jit
def _scaled(total, sums, eps, INPUTS: tl.constexpr, NORMED: tl.constexpr, SHRINK: tl.constexpr):
    """Sums [HEIGHT, WIDTH] over the rms of their rows, by squares of `_load_squares`."""
    if NORMED:
        scale = tl.rsqrt(tl.sum(sums, axis=0) / INPUTS + eps) / SHRINK
        total = total * scale[:, None]
    return total


@triton.jit
def _biased(total, bias, first, OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, BIASED: tl.constexpr):
    """Sums [HEIGHT, WIDTH] of outputs from `first` on, and their bias."""
    if BIASED:
        output = first + tl.arange(0, WIDTH)
        total = total + tl.load(bias + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit(do_not_specialize=["rows"])
def project_kernel(
    out, x, weights, source, bias, squares, rows, x_stride, eps,
    EARLY: tl.constexpr, AHEAD: tl.constexpr, MAPPED: tl.constexpr, FIRST: tl.constexpr, NORMED: tl.constexpr,
    BIASED: tl.constexpr, SHRINK: tl.constexpr, PARTS: tl.constexpr, SPACE: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out [T, OUTPUTS] = x [T, INPUTS] @ weights.T + bias, over the grid of tiles of outputs.

    NORMED: x is what `add_kernel` left, with squares [PARTS, HEIGHT]. source: the weights, or with MAPPED their
    descriptor of tiles [WIDTH, DEPTH].
    """
    first = tl.program_id(0) * WIDTH
    if EARLY:
        _fetch_ahead(weights, first, 0, OUTPUTS, INPUTS, WIDTH, DEPTH, AHEAD)
    _await_previous(EARLY)
    sums = _load_squares(squares, rows, PARTS, SPACE, HEIGHT, NORMED)
    total = _zeros(HEIGHT, WIDTH, FIRST)
    WHOLE: tl.constexpr = OUTPUTS % WIDTH == 0 and INPUTS % DEPTH == 0
    for block in tl.range(0, (INPUTS + DEPTH - 1) // DEPTH):
        values = _load_rows(x, x_stride, rows, block, INPUTS, HEIGHT, DEPTH)
        tile = _load_weights(source, first, block, OUTPUTS, INPUTS, WIDTH, DEPTH, MAPPED, WHOLE)
        total = _multiply(values, tile, total, FIRST)
    total = _scaled(_by_row(total, FIRST), sums, eps, INPUTS, NORMED, SHRINK)
    total = _biased(total, bias, first, OUTPUTS, WIDTH, BIASED)
    row, output = tl.arange(0, HEIGHT), first + tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    tl.store(out + row[:, None] * OUTPUTS + output[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def gate_kernel(
    out, x, weights, source, bias, squares, rows, x_stride, eps,
    EARLY: tl.constexpr, AHEAD: tl.constexpr, MAPPED: tl.constexpr, FIRST: tl.constexpr, NORMED: tl.constexpr,
    BIASED: tl.constexpr, SHRINK: tl.constexpr, PARTS: tl.constexpr, SPACE: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out [T, OUTPUTS] = silu(gate) * up of weights [2 * OUTPUTS, INPUTS], gate first, over the grid of tiles of `out`.

    The rest as in `project_kernel`; a program multiplies WIDTH rows of the gate and those of up that belong to them.
    """
    first = tl.program_id(0) * WIDTH
    if EARLY:
        _fetch_ahead(weights, first, 0, 2 * OUTPUTS, INPUTS, WIDTH, DEPTH, AHEAD)
        _fetch_ahead(weights, first + OUTPUTS, 0, 2 * OUTPUTS, INPUTS, WIDTH, DEPTH, AHEAD)
    _await_previous(EARLY)
    sums = _load_squares(squares, rows, PARTS, SPACE, HEIGHT, NORMED)
    gate, up = _zeros(HEIGHT, WIDTH, FIRST), _zeros(HEIGHT, WIDTH, FIRST)
    WHOLE: tl.constexpr = OUTPUTS % WIDTH == 0 and INPUTS % DEPTH == 0
    for block in tl.range(0, (INPUTS + DEPTH - 1) // DEPTH):
        values = _load_rows(x, x_stride, rows, block, INPUTS, HEIGHT, DEPTH)
        tile = _load_weights(source, first, block, 2 * OUTPUTS, INPUTS, WIDTH, DEPTH, MAPPED, WHOLE)
        gate = _multiply(values, tile, gate, FIRST)
        tile = _load_weights(source, first + OUTPUTS, block, 2 * OUTPUTS, INPUTS, WIDTH, DEPTH, MAPPED, WHOLE)
        up = _multiply(values, tile, up, FIRST)
    gate = _scaled(_by_row(gate, FIRST), sums, eps, INPUTS, NORMED, SHRINK)
    up = _scaled(_by_row(up, FIRST), sums, eps, INPUTS, NORMED, SHRINK)
    gate = _biased(gate, bias, first, OUTPUTS, WIDTH, BIASED)
    up = _biased(up, bias + OUTPUTS, first, OUTPUTS, WIDTH, BIASED)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    row, output = tl.arange(0, HEIGHT), first + tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    tl.store(out + row[:, None] * OUTPUTS + output[None, :], gated.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _leave(
    residual, scaled, squares, gain, total, tile, rows,
    SHRINK: tl.constexpr, OUTPUTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add sums [HEIGHT, WIDTH] to a tile of the residual [T, OUTPUTS], and leave what the norm of that needs."""
    row, output = tl.arange(0, HEIGHT), tile * WIDTH + tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    places = row[:, None] * OUTPUTS + output[None, :]
    before = tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    after = (before + total).to(residual.dtype.element_ty)
    tl.store(residual + places, after, mask=inside)
    values = after.to(tl.float32)
    gains = tl.load(gain + output, mask=output < OUTPUTS, other=0.0).to(tl.float32) * SHRINK
    tl.store(scaled + places, (values * gains[None, :]).to(scaled.dtype.element_ty), mask=inside)
    # Outputs behind the end have weights of zero or another tile's, and count for nothing.
    values = tl.where(inside, values, 0.0)
    tl.store(squares + tile * HEIGHT + row, tl.sum(values * values, axis=1))


@triton.jit(do_not_specialize=["rows"])
def add_kernel(
    residual, scaled, squares, x, weights, source, bias, gain, parts, arrivals, rows, x_stride,
    EARLY: tl.constexpr, AHEAD: tl.constexpr, MAPPED: tl.constexpr, FIRST: tl.constexpr, BIASED: tl.constexpr,
    SHRINK: tl.constexpr, SPLITS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """residual [T, OUTPUTS] += x [T, INPUTS] @ weights.T + bias, rounded once, over the grid (tiles, SPLITS).

    scaled [T, OUTPUTS]: the sum times gain [OUTPUTS] and SHRINK. squares [tiles, HEIGHT]: sums of its squares. The
    programs of a tile have shares of the inputs and write parts [SPLITS, HEIGHT, OUTPUTS]; the last to come adds them
    up, in the order of the parts. arrivals [tiles] count, 0 between launches.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    first = tile * WIDTH
    BLOCKS: tl.constexpr = (INPUTS + DEPTH - 1) // DEPTH
    begin, end = split * BLOCKS // SPLITS, (split + 1) * BLOCKS // SPLITS
    if EARLY:
        _fetch_ahead(weights, first, begin, OUTPUTS, INPUTS, WIDTH, DEPTH, AHEAD)
    _await_previous(EARLY)
    total = _zeros(HEIGHT, WIDTH, FIRST)
    WHOLE: tl.constexpr = OUTPUTS % WIDTH == 0 and INPUTS % DEPTH == 0
    for block in tl.range(begin, end):
        values = _load_rows(x, x_stride, rows, block, INPUTS, HEIGHT, DEPTH)
        part = _load_weights(source, first, block, OUTPUTS, INPUTS, WIDTH, DEPTH, MAPPED, WHOLE)
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
            _leave(residual, scaled, squares, gain, total, tile, rows, SHRINK, OUTPUTS, HEIGHT, WIDTH)
    else:
        total = _biased(total, bias, first, OUTPUTS, WIDTH, BIASED)
        _leave(residual, scaled, squares, gain, total, tile, rows, SHRINK, OUTPUTS, HEIGHT, WIDTH)
