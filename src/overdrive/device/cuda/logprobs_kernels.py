"""`logprobs.logprobs` in Triton: parts of rows find their largest logits, their mass and who is ahead; rows join them.

A logit and its id are one int64 whose order is that of the ranking: the logit's bits above, in a form that keeps their
order, and below them the id, from the highest down.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overdrive.device.cuda.score_kernels import clean
from overdrive.device.logprobs import Logprobs

PARTS = 128
"""Most parts of a row, each for one program."""

BLOCK = 1024
"""Logits of a part, at least."""

NOTHING = tl.constexpr(-(2**63))
"""A key behind all keys."""


def logprobs(logits: Tensor, tokens: Tensor, n: int) -> Logprobs:
    """As `logprobs.logprobs`."""
    rows, vocab_size = logits.shape
    n = min(n, vocab_size)
    block = max(BLOCK, triton.next_power_of_2(triton.cdiv(vocab_size, PARTS)))
    parts = triton.cdiv(vocab_size, block)

    def blank(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=kind, device=logits.device)

    whole = torch.int64
    found = Logprobs(blank(rows), blank(rows, kind=whole), blank(rows, n, kind=whole), blank(rows, n))
    sums, keys = blank(3, rows, parts), blank(rows, parts, n, kind=whole)
    _parts[(rows, parts)](logits, tokens, sums, keys, logits.stride(0), rows * parts, vocab_size, N=n, BLOCK=block)
    _join[(rows,)](
        logits,
        tokens,
        sums,
        keys,
        found.chosen,
        found.ranks,
        found.top_ids,
        found.top,
        logits.stride(0),
        rows * parts,
        parts,
        N=n,
        PADDED=triton.next_power_of_2(parts),
        KEYS=triton.next_power_of_2(max(1, parts * n)),
        num_warps=8,
    )
    return found


@triton.jit(do_not_specialize=["line_of_sums"])
def _parts(logits, tokens, sums, keys, line, line_of_sums, vocab_size, N: tl.constexpr, BLOCK: tl.constexpr):
    """sums: [3, rows, parts], a part's largest logit, its mass over that, and how many are ahead, exact in float32."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab_size
    x = clean(tl.load(logits + row * line + column, mask=inside, other=0.0))
    token = tl.load(tokens + row)
    its = clean(tl.load(logits + row * line + token))
    before = inside & ((x > its) | ((x == its) & (column < token)))
    x = tl.where(inside, x, float("-inf"))
    top = tl.max(x, 0)
    at = row * tl.num_programs(1) + part
    tl.store(sums + at, top)
    tl.store(sums + line_of_sums + at, tl.sum(tl.exp(x - top), 0))
    tl.store(sums + 2 * line_of_sums + at, tl.sum(before.to(tl.float32), 0))
    if N > 0:
        left = tl.where(inside, _key(x, column), NOTHING)
        for index in range(N):
            best = tl.max(left, 0)
            tl.store(keys + at * N + index, best)
            left = tl.where(left == best, NOTHING, left)


@triton.jit
def _key(x, column):
    """int64 that are ordered as logits are, equal ones by their column from the last to the first."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit(do_not_specialize=["line_of_sums"])
def _join(
    logits,
    tokens,
    sums,
    keys,
    chosen,
    ranks,
    top_ids,
    top_values,
    line,
    line_of_sums,
    parts,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    at, real = sums + row * parts + part, part < parts
    top_of = tl.load(at, mask=real, other=float("-inf"))
    top = tl.max(top_of, 0)
    mass = tl.sum(tl.load(at + line_of_sums, mask=real, other=0.0) * tl.exp(top_of - top), 0)
    norm = top + tl.log(mass)
    its = clean(tl.load(logits + row * line + tl.load(tokens + row)))
    tl.store(chosen + row, its - norm)
    tl.store(ranks + row, tl.sum(tl.load(at + 2 * line_of_sums, mask=real, other=0.0).to(tl.int64), 0) + 1)
    if N > 0:
        index = tl.arange(0, KEYS)
        left = tl.load(keys + row * parts * N + index, mask=index < parts * N, other=NOTHING)
        for best_of in range(N):
            best = tl.max(left, 0)
            bits = (best >> 32).to(tl.int32)
            value = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
            tl.store(top_ids + row * N + best_of, 0x7FFFFFFF - (best & 0x7FFFFFFF))
            tl.store(top_values + row * N + best_of, value - norm)
            left = tl.where(left == best, NOTHING, left)
