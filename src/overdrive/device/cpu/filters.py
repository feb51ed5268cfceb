"""Top-k and top-p without sorting the vocabulary: each finds the last token that survives.

A row of logits x [V] (over temperature, finite but for -inf) comes with the maximum of each BLOCK of it, so that blocks
with nothing of interest are passed over. The tokens that survive a filter are those before a *cut* (value, id) in the
order "higher first, lower id among equals": x > value, or x == value with an id up to the cut's. Only numba functions.
"""

from __future__ import annotations

import numba
import numpy as np

BLOCK = 256
BINS = 256
SORTED = 48
"""Candidates that are few enough to sort by insertion."""

NO_CUT = -1
"""Id of the cut that keeps everything."""


inner = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that only compiled code calls: without an entry point for Python they compile in half the time."""


@inner
def exp(y):
    """e^y for y <= 0 within an ulp, 0 below e^-708; without branches, so that loops over it become vector code.

    y = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor series, 2^n written into the exponent bits.
    """
    z = max(y, -708.0)
    shifted = z * 1.4426950408889634 + 6755399441055744.0  # adding 1.5 * 2^52 rounds to an integer in the low bits
    n = shifted - 6755399441055744.0
    r = (z - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    return p * power if y > -708.0 else 0.0


@inner
def block_maxima(x, maxima, folded):
    """Write the largest of each BLOCK of x [V] to maxima [ceil(V / BLOCK)], NaN left out; returns the largest.

    folded: [BLOCK // 2] of x's type, scratch: a block is halved until one number is left, which is vector code.
    """
    low = type(x[0])(-np.inf)
    best = low
    for block in range(len(maxima)):
        first = block * BLOCK
        half = BLOCK // 2
        if first + BLOCK <= len(x):
            for i in range(half):
                a, b = x[first + i], x[first + half + i]
                a, b = a if a == a else low, b if b == b else low
                folded[i] = a if a > b else b
        else:
            for i in range(half):
                folded[i] = low
            for i in range(first, len(x)):
                folded[i % half] = x[i] if x[i] > folded[i % half] else folded[i % half]
        while half > 1:
            half //= 2
            for i in range(half):
                folded[i] = folded[i] if folded[i] > folded[half + i] else folded[half + i]
        maxima[block] = folded[0]
        best = folded[0] if folded[0] > best else best
    return best


@inner
def top_k_cut(x, maxima, k, ids):
    """Cut that keeps the k first tokens, 0 < k <= V: a heap of the best k whose root is the worst. ids: [V] scratch."""
    for i in range(k):
        ids[i] = i
    for at in range(k // 2 - 1, -1, -1):
        _sift_down(x, ids, at, k)
    for block in range(k // BLOCK, len(maxima)):
        if maxima[block] > x[ids[0]]:  # later ids lose ties
            for i in range(max(k, block * BLOCK), min((block + 1) * BLOCK, len(x))):
                if x[i] > x[ids[0]]:
                    ids[0] = i
                    _sift_down(x, ids, 0, k)
    return x[ids[0]], np.int64(ids[0])


@inner
def _behind(x, a, b):
    """Whether token a comes after token b in the order."""
    return x[a] < x[b] or (x[a] == x[b] and a > b)


@inner
def _sift_down(x, ids, at, size):
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _behind(x, ids[child + 1], ids[child]):
            child += 1
        if not _behind(x, ids[child], ids[at]):
            break
        ids[at], ids[child] = ids[child], ids[at]
        at = child


@inner
def top_p_cut(x, maxima, best, p, cut, cut_id, ids, work):
    """Cut that keeps the fewest first tokens with a share >= p of the mass before `cut`.

    ids: [V] int32, work: [2 * BINS] float64: scratch.
    """
    if cut_id != NO_CUT:
        n = _before(x, maxima, cut, cut_id, ids)
        bound = p * _mass_of(x, best, ids, n)
    else:
        bound = p * _mass(x, best, work)
        reach = 4.0
        n = _before(x, maxima, type(best)(best - reach), len(x), ids)
        while n < len(x) and _mass_of(x, best, ids, n) <= bound:
            reach *= 4 if reach < 1000 else np.inf
            n = _before(x, maxima, type(best)(best - reach), len(x), ids)
    return _nucleus(x, best, bound, ids, n, work)


@inner
def _before(x, maxima, cut, cut_id, ids):
    """Collect the ids before a cut, ascending; returns how many."""
    n = 0
    for block in range(len(maxima)):
        if maxima[block] >= cut:
            for i in range(block * BLOCK, min((block + 1) * BLOCK, len(x))):
                if x[i] > cut or (x[i] == cut and i <= cut_id):
                    ids[n] = i
                    n += 1
    return n


@inner
def _mass(x, best, work):
    """Sum of e^(x - best) over the row, block by block in a fixed order that is vector code."""
    total = 0.0
    for first in range(0, len(x), BLOCK):
        half = BLOCK // 2
        if first + BLOCK <= len(x):
            for i in range(half):
                work[i] = exp(np.float64(x[first + i]) - best) + exp(np.float64(x[first + half + i]) - best)
        else:
            for i in range(half):
                work[i] = 0.0
            for i in range(first, len(x)):
                work[i % half] += exp(np.float64(x[i]) - best)
        while half > 1:
            half //= 2
            for i in range(half):
                work[i] += work[half + i]
        total += work[0]
    return total


@inner
def _mass_of(x, best, ids, n):
    total = 0.0
    for j in range(n):
        total += exp(np.float64(x[ids[j]]) - best)
    return total


@inner
def _nucleus(x, best, bound, ids, n, work):
    """The last token, in the order, with a mass before it that is below `bound`; the first token in any case.

    While candidates are many they are counted into bins by value, and only the bin that the bound falls into is kept.
    """
    before, many = 0.0, n + 1
    while n > SORTED and n < many:  # a step without progress: closer together than bins can tell
        many = n
        n, before = _bin_of_bound(x, best, bound, ids, n, before, work)
    for j in range(1, n):  # insertion sort; equals stand in order already
        token, at = ids[j], j
        while at > 0 and _behind(x, ids[at - 1], token):
            ids[at] = ids[at - 1]
            at -= 1
        ids[at] = token
    last = 0
    while last + 1 < n:
        before += exp(np.float64(x[ids[last]]) - best)
        if before >= bound:
            break
        last += 1
    return x[ids[last]], np.int64(ids[last])


@inner
def _bin_of_bound(x, best, bound, ids, n, before, work):
    """Split candidates into BINS bins of equal width; keeps those of the bound's bin, and the mass before them."""
    low, high = np.float64(x[ids[0]]), np.float64(x[ids[0]])
    for j in range(n):
        low, high = min(low, np.float64(x[ids[j]])), max(high, np.float64(x[ids[j]]))
    low = max(low, high - 1e3)  # one token at -inf must not stretch the bins
    scale = (BINS - 1) / max(high - low, 1e-300)
    for at in range(2 * BINS):
        work[at] = 0.0  # masses, then sizes
    for j in range(n):
        at = int((high - max(np.float64(x[ids[j]]), low)) * scale)
        work[at] += exp(np.float64(x[ids[j]]) - best)
        work[BINS + at] += 1
    chosen, following = 0, before
    for at in range(BINS):
        if work[BINS + at]:
            chosen, before = at, following
            following = before + work[at]
            if following >= bound:
                break
    kept = 0
    for j in range(n):
        if int((high - max(np.float64(x[ids[j]]), low)) * scale) == chosen:
            ids[kept] = ids[j]
            kept += 1
    return kept, before
