"""The keyed noise of `overdrive.device.noise` as Triton functions: the same hashes, floats but for rounding."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fmix32(h):
    """MurmurHash3's finaliser. h: uint32."""
    h = h ^ (h >> 16)
    h = h * 0x85EBCA6B
    h = h ^ (h >> 13)
    h = h * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def position_key(seed, position):
    """The two uint32 words of a position, from int64 seed and position."""
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    a = fmix32(low ^ fmix32(((position + 0x9E3779B9) & 0xFFFFFFFF).to(tl.uint32)))
    b = fmix32(high ^ fmix32(((a.to(tl.int64) + 0x7F4A7C15) & 0xFFFFFFFF).to(tl.uint32)))
    return a, b


@triton.jit
def keyed_hash(a, b, ids):
    """uint32 hash of token ids below 2^32, under a position's key."""
    return fmix32(fmix32(ids.to(tl.uint32) + a) ^ b)


@triton.jit
def gumbel(h):
    """float32 noise of a uint32 hash: -log(-log1p(-v)) with v = (h + 1/2) / 2^32.

    Of small v the logarithm of 1 - v would keep few digits, and that is where draws are won: there the series is taken.
    """
    v = (h.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    series = v * (1.0 + v * (0.5 + v * (1.0 / 3.0 + v * (0.25 + v * 0.2))))
    return -tl.log(tl.where(v < 0.03125, series, -tl.log(1.0 - v)))
