"""ggml's quantised blocks taken apart: codes, scales and minima of every weight, nothing rounded.

Layouts follow ggml's quantisation structs (`block_q4_0` .. `block_q6_K` in ggml-common.h). A weight is
`scale * code (+ minimum)`; in the K types both factors are products of a half-precision number and a small integer,
which single precision holds exactly (scales) or to its last bit (minima).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType as Kind

from overdrive.device.cpu.formats import Q4_0, Q4_1, Q4_K, Q5_1, Q5_K, Q6_K, Q8_0, Format

Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""codes [n, inputs of a ggml block], scales [n, scales of one] and minima, alike or None."""


@dataclass(frozen=True, slots=True)
class Layout:
    """form: the kernels' format. size: bytes of a ggml block. split: blocks [n, size] uint8 -> their parts."""

    form: Format
    size: int
    split: Callable[[np.ndarray], Parts]


def _halves(blocks: np.ndarray, start: int, count: int) -> np.ndarray:
    """`count` half-precision numbers at byte `start` of every block, [n, count]."""
    return np.ascontiguousarray(blocks[:, start : start + 2 * count]).view(np.float16)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[..., m] bytes -> [..., 2 m] codes: all low halves, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    """A 32-bit word at byte `start`: the fifth bit of each of 32 codes, [n, 32], in its place."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") << 4


def _q4_0(blocks: np.ndarray) -> Parts:
    return _nibbles(blocks[:, 2:]), _halves(blocks, 0, 1), None


def _q4_1(blocks: np.ndarray) -> Parts:
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0, 1), _halves(blocks, 2, 1)


def _q5_0(blocks: np.ndarray) -> Parts:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return codes.view(np.int8) - np.int8(16), _halves(blocks, 0, 1), None


def _q5_1(blocks: np.ndarray) -> Parts:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return codes.view(np.int8), _halves(blocks, 0, 1), _halves(blocks, 2, 1)


def _q8_0(blocks: np.ndarray) -> Parts:
    return blocks[:, 2:].view(np.int8), _halves(blocks, 0, 1), None


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and (negative) minima of eight sub-blocks, [n, 8] float32 each, from 12 bytes of 6-bit pairs."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    factors = _halves(blocks, 0, 2).astype(np.float32)
    return factors[:, :1] * scales, -factors[:, 1:] * minima


def _k_nibbles(packed: np.ndarray) -> np.ndarray:
    """128 bytes -> 256 codes: of each 32 bytes the low halves, then the high ones."""
    return _nibbles(packed.reshape(len(packed), 4, 32)).reshape(len(packed), 256)


def _q4_k(blocks: np.ndarray) -> Parts:
    return _k_nibbles(blocks[:, 16:]), *_k_scales(blocks)


def _q5_k(blocks: np.ndarray) -> Parts:
    # Bit s of byte l is the fifth bit of weight l of sub-block s.
    bits = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1).reshape(-1, 256)
    return (_k_nibbles(blocks[:, 48:]) | (bits << 4)).view(np.int8), *_k_scales(blocks)


def _q6_k(blocks: np.ndarray) -> Parts:
    n = len(blocks)
    low = _nibbles(blocks[:, :128].reshape(n, 2, 64)).reshape(n, 2, 4, 32)
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None] & 3
    codes = (low | (high << 4)).reshape(n, 256).view(np.int8) - np.int8(32)
    scales = blocks[:, 192:208].view(np.int8) * _halves(blocks, 208, 1).astype(np.float32)
    return codes, scales, None


LAYOUTS = {
    Kind.Q4_0: Layout(Q4_0, 18, _q4_0),
    Kind.Q4_1: Layout(Q4_1, 20, _q4_1),
    Kind.Q5_0: Layout(Q8_0, 22, _q5_0),
    Kind.Q5_1: Layout(Q5_1, 24, _q5_1),
    Kind.Q8_0: Layout(Q8_0, 34, _q8_0),
    Kind.Q4_K: Layout(Q4_K, 144, _q4_k),
    Kind.Q5_K: Layout(Q5_K, 176, _q5_k),
    Kind.Q6_K: Layout(Q6_K, 210, _q6_k),
}
