"""Top-k and top-p without sorting the vocabulary: each finds the last token that survives.

A row of logits x [V] (over temperature, finite but for -inf) comes with the maximum of each BLOCK of it, so that blocks
with nothing of interest are passed over. The tokens that survive a filter are those before a *cut* (value, id) in the
order "higher first, lower id among equals": x > value, or x == value with an id up to the cut's. Only numba functions.
"""

from __future__ import annotations

import numba
import numpy as np

BLOCK = 256
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
def block_maxima(x, maxima):
    """Write the largest of each BLOCK of x [V] to maxima [ceil(V / BLOCK)], NaN left out; returns the largest."""
    half = BLOCK // 2
    folded = np.empty(half, x.dtype)
    low = x.dtype.type(-np.inf)
    for block in range(len(maxima)):
        part = x[block * BLOCK : min((block + 1) * BLOCK, len(x))]
        if len(part) == BLOCK:
            for i in range(half):
                a, b = part[i], part[half + i]
                a, b = a if a == a else low, b if b == b else low
                folded[i] = a if a > b else b
        else:
            folded[:] = low
            for i in range(len(part)):
                folded[i % half] = part[i] if part[i] > folded[i % half] else folded[i % half]
        maxima[block] = _fold(folded)
    return maxima.max()


@inner
def _fold(values):
    """The largest of a power of two of numbers, by halves, so that the comparisons become vector code; overwrites."""
    half = len(values) // 2
    while half:
        for i in range(half):
            a, b = values[i], values[half + i]
            values[i] = a if a > b else b
        half //= 2
    return values[0]


@inner
def top_k_cut(x, maxima, k):
    """Cut that keeps the k first tokens, 0 < k <= V: a heap of the best k whose root is the worst of them."""
    ids = np.empty(k, np.int32)
    size = 0
    for block in range(len(maxima)):
        if size == k and not maxima[block] > x[ids[0]]:
            continue  # later ids lose ties
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(x))):
            if size < k:
                ids[size] = i
                size += 1
                _sift_up(x, ids, size - 1)
            elif x[i] > x[ids[0]]:
                ids[0] = i
                _sift_down(x, ids)
    return x[ids[0]], np.int64(ids[0])


@inner
def _behind(x, a, b):
    """Whether token a comes after token b in the order."""
    return x[a] < x[b] or (x[a] == x[b] and a > b)


@inner
def _sift_up(x, ids, at):
    while at > 0 and _behind(x, ids[at], ids[(at - 1) >> 1]):
        above = (at - 1) >> 1
        ids[at], ids[above] = ids[above], ids[at]
        at = above


@inner
def _sift_down(x, ids):
    at, size = 0, len(ids)
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _behind(x, ids[child + 1], ids[child]):
            child += 1
        if not _behind(x, ids[child], ids[at]):
            break
        ids[at], ids[child] = ids[child], ids[at]
        at = child


@inner
def top_p_cut(x, maxima, best, p, cut, cut_id, ids):
    """Cut that keeps the fewest first tokens with a share >= p of the mass before `cut`. ids: [V] int32, scratch."""
    if cut_id != NO_CUT:
        n = _before(x, maxima, cut, cut_id, ids)
        bound = p * _mass_of(x, best, ids[:n])
        return _nucleus(x, best, bound, ids[:n])
    bound = p * _mass(x, maxima, best)
    for reach in (4.0, 10.0, np.inf):
        n = _before(x, maxima, x.dtype.type(best - reach), len(x), ids)
        if reach == np.inf or _mass_of(x, best, ids[:n]) > bound:
            break
    return _nucleus(x, best, bound, ids[:n])


@inner
def _before(x, maxima, cut, cut_id, ids):
    """Collect the ids before a cut, ascending; returns how many."""
    n = 0
    for block in range(len(maxima)):
        if maxima[block] < cut:
            continue
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(x))):
            if x[i] > cut or (x[i] == cut and i <= cut_id):
                ids[n] = i
                n += 1
    return n


@inner
def _mass(x, maxima, best):
    """Sum of e^(x - best) over the row."""
    masses = np.empty(BLOCK)
    total = 0.0
    for block in range(len(maxima)):
        first = block * BLOCK
        size = min(BLOCK, len(x) - first)
        for i in range(size):
            masses[i] = exp(np.float64(x[first + i]) - best)
        masses[size:] = 0.0
        half = BLOCK // 2
        while half:  # pairwise, so that the additions become vector code too
            for i in range(half):
                masses[i] += masses[i + half]
            half //= 2
        total += masses[0]
    return total


@inner
def _mass_of(x, best, ids):
    total = 0.0
    for i in ids:
        total += exp(np.float64(x[i]) - best)
    return total


@inner
def _nucleus(x, best, bound, ids):
    """The last token, in the order, with a mass before it that is below `bound`; the first token in any case.

    While candidates are many they are counted into bins by value, and only the bin that the bound falls into is kept.
    """
    before = 0.0
    while len(ids) > SORTED:
        low, high = x[ids[0]], x[ids[0]]
        for i in ids:
            low, high = min(low, x[i]), max(high, x[i])
        if low == high:
            break
        many = len(ids)
        ids, before = _bin_of_bound(x, best, bound, ids, low, high, before)
        if len(ids) == many:
            break  # closer together than bins can tell
    _sort(x, ids)  # equals stand in order already
    last = ids[0]
    for i in ids:
        if before >= bound:
            break
        last = i
        before += exp(np.float64(x[i]) - best)
    return x[last], np.int64(last)


@inner
def _bin_of_bound(x, best, bound, ids, low, high, before):
    """Split candidates into 256 bins of equal width; returns those of the bound's bin and the mass before them."""
    bins = 256
    masses, sizes = np.zeros(bins), np.zeros(bins, np.int64)
    floor = max(np.float64(low), np.float64(high) - 1e3)  # one token at -inf must not stretch the bins
    scale = (bins - 1) / max(np.float64(high) - floor, 1e-300)
    for i in ids:
        at = min(int((np.float64(high) - max(np.float64(x[i]), floor)) * scale), bins - 1)
        masses[at] += exp(np.float64(x[i]) - best)
        sizes[at] += 1
    chosen, following = 0, before
    for at in range(bins):
        if sizes[at]:
            chosen, before = at, following
            following = before + masses[at]
            if following >= bound:
                break
    n = 0
    for i in ids:
        if min(int((np.float64(high) - max(np.float64(x[i]), floor)) * scale), bins - 1) == chosen:
            ids[n] = i
            n += 1
    return ids[:n], before


@inner
def _sort(x, ids):
    """Insertion sort into the order."""
    for i in range(1, len(ids)):
        token = ids[i]
        at = i
        while at > 0 and _behind(x, ids[at - 1], token):
            ids[at] = ids[at - 1]
            at -= 1
        ids[at] = token
