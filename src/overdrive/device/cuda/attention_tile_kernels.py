"""What a tile of scores does to the running softmax, and the tile of a step's own tokens, whose keys come with it.

The tokens of a row that are new in a step are attended to where the product left them: keys are rotated and both keys
and values put into their pages on the way, by one program, while others read the places before them. So nobody waits
for what another program of the launch writes. Imported only where Triton is; `attention_kernels` explains the names.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def weigh(scores, total, top):
    """Weights of scores [ROWS, KEYS] in the running softmax, what earlier sums shrink by, and the new total and top."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    return weights, shrink, total * shrink + tl.sum(weights, 1), new_top


@triton.jit
def load_rotated(x, places, at, valid, cos, sin, D: tl.constexpr):
    """Heads [N, D] of x at `places` [N], pair (i, i + D/2) rotated by the angle of position `at` [N]; 0 if not valid.

    D: a power of two. The arithmetic is float32, rounded once, bit for bit that of `store_kernels`.
    """
    HALF: tl.constexpr = D // 2
    half, pair = tl.arange(0, 2)[None, :, None], tl.arange(0, HALF)[None, None, :]
    mask, begin = valid[:, None, None], x + places[:, None, None]
    own = tl.load(begin + half * HALF + pair, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(begin + (1 - half) * HALF + pair, mask=mask, other=0.0).to(tl.float32)
    angle = at.to(tl.int64)[:, None, None] * HALF + pair
    c = tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=mask, other=0.0).to(tl.float32)
    rotated = tl.fma(own, c, other * tl.where(half == 0, -s, s))
    return tl.reshape(rotated.to(x.dtype.element_ty), (places.shape[0], D))


@triton.jit
def attend_new(
    sums, total, top, queries, at, k, v, k_stride, v_stride, cos, sin, writes, k_pages, v_pages, begin, count, first,
    head, window, scale,
    WINDOWED: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, NEW: tl.constexpr,
):  # fmt: skip
    """Fold a row's own tokens into the running softmax and put them into their places.

    k, v [T, KV_HEADS, D], k not rotated; the row's `count` tokens, at most NEW, begin at `begin` and stand at positions
    from `first` on. They are always seen, but for later tokens and the window. The rest as in `_attend_tile`.
    """
    token, dims = tl.arange(0, NEW), tl.arange(0, D)
    stands, row = token < count, (begin + token).to(tl.int64)
    mask = stands[:, None]
    keys = load_rotated(k, row * k_stride + head * D, first + token, stands, cos, sin, D)
    values = tl.load(v + (row * v_stride + head * D)[:, None] + dims[None, :], mask=mask, other=0.0)
    write = tl.load(writes + begin + token, mask=stands, other=0)
    target = (write // PAGE * (KV_HEADS * PAGE * D) + write % PAGE * D)[:, None] + dims[None, :]
    tl.store(k_pages + target, keys, mask=mask)
    tl.store(v_pages + target, values, mask=mask)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    visible = stands[None, :] & ((first + token)[None, :] <= at[:, None])
    if WINDOWED:
        visible = visible & ((first + token)[None, :] > at[:, None] - window)
    weights, shrink, total, top = weigh(tl.where(visible, scores, float("-inf")), total, top)
    sums = tl.dot(weights.to(values.dtype), values, sums * shrink[:, None], input_precision="ieee")
    return sums, total, top
