"""Noise that couples drafts and target: a pure function of (request seed, absolute position, token id).

Whoever draws the token at a position, and however many positions are drawn at once, meets the same noise, so the text
does not depend on the number of drafts. Knows nothing of logits or requests.

The hash works on 32-bit words; `fmix32` is the finaliser of MurmurHash3 (Austin Appleby, public domain), a bijection
with full avalanche:

    a = fmix32(seed_low  ^ fmix32(position + 0x9E3779B9))     once per position
    b = fmix32(seed_high ^ fmix32(a        + 0x7F4A7C15))     once per position
    h = fmix32(fmix32(id + a) ^ b)                            per token; distinct for distinct ids of one position
"""

from __future__ import annotations

import torch
from torch import Tensor

NOISE_BOUND = 22.9
"""No noise reaches this: the largest is -log(-log1p(-2^-33)) = 22.874."""

_WORD = 0xFFFFFFFF


def fmix32(h: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser over int64 tensors that hold values below 2^32."""
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & _WORD  # the product wraps at 64 bits, which leaves its low word right
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & _WORD
    return h ^ (h >> 16)


def position_key(seed: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The two words a and b of the module's docstring; `seed` and `position` are int64 and broadcast."""
    a = fmix32((seed & _WORD) ^ fmix32((position + 0x9E3779B9) & _WORD))
    b = fmix32(((seed >> 32) & _WORD) ^ fmix32((a + 0x7F4A7C15) & _WORD))
    return a, b


def keyed_hash(seed: Tensor, position: Tensor, ids: Tensor) -> Tensor:
    """32-bit hash (in int64) of int64 tensors that broadcast against each other."""
    a, b = position_key(seed, position)
    return fmix32(fmix32((ids + a) & _WORD) ^ b)


def gumbel(h: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard Gumbel noise of a 32-bit hash: v = (h + 1/2) / 2^32, noise = -log(-log1p(-v)).

    The fine end of v is the large end of the noise, where draws are won. In float32 v rounds to 1 for the largest 128
    hashes and the noise is -inf, which loses; the usual form -log(-log(v)) would give +inf there and win.
    """
    v = (h.to(dtype) + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-v))


def keyed_noise(seed: Tensor, position: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Gumbel noise in `dtype` for (seed, position, token id); int64 tensors that broadcast against each other."""
    return gumbel(keyed_hash(seed, position, ids), dtype)
