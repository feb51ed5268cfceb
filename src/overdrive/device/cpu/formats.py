"""How a weight matrix lies in memory for the kernels: panels of 16 output rows, interleaved input by input.

    panel p holds output rows 16 p .. 16 p + 15, one lane each
    [block 0: scales x 16 | minima x 16 | codes ....][block 1: ...]
                                        codes of input i, 16 lanes; 4-bit codes keep inputs 2 j and 2 j + 1 in one byte

A weight is `scale * code (+ minimum)`. Sixteen sums over the inputs then run side by side in one register, in input
order, with no horizontal sum and nothing for a compiler to reorder.

Where the machine multiplies bytes, codes lie in quads instead: of inputs 4 j .. 4 j + 3 output by output, one byte each
(8-bit codes with 128 added), 4-bit codes with those of quads 2 j and 2 j + 1 in one byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from overdrive.device.cpu.lanes import LANES

GROUP = 4  # panels a work item covers; matrices are padded to whole groups
ROWS_PER_GROUP = GROUP * LANES


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store weights.

    bits: of a code: 4 (unsigned), 8 (signed) or 32 (float32 weights, no scales).
    block: inputs that share a scale; 0 when the whole row does (the scale is then applied to the finished sum).
    scale_bytes: 2 for half, 4 for single precision scales inside the panel; 0 without.
    minimum: "stored" beside the scale, "centre" for codes that mean code - 8, or "none".
    quads: codes lie in quads, to be multiplied as bytes.
    """

    name: str
    bits: Literal[4, 8, 32]
    block: int = 0
    scale_bytes: Literal[0, 2, 4] = 0
    minimum: Literal["none", "stored", "centre"] = "none"
    quads: bool = False

    @property
    def scaled_rows(self) -> bool:
        """Whether a scale per output row multiplies the finished sum."""
        return self.bits != 32 and not self.block

    @property
    def head_bytes(self) -> int:
        """Scales and minima at the head of a block."""
        return LANES * self.scale_bytes * (2 if self.minimum == "stored" else 1)

    @property
    def pair_bytes(self) -> int:
        """Codes of two consecutive inputs."""
        return LANES * self.bits // 4

    def block_inputs(self, inputs: int) -> int:
        return self.block or inputs

    def block_bytes(self, inputs: int) -> int:
        return self.head_bytes + self.block_inputs(inputs) // 2 * self.pair_bytes

    def panel_bytes(self, inputs: int) -> int:
        return inputs // self.block_inputs(inputs) * self.block_bytes(inputs)


FLOAT32 = Format("float32", bits=32)
INT8 = Format("int8", bits=8)
Q4_0 = Format("q4_0", bits=4, block=32, scale_bytes=2, minimum="centre")
Q4_1 = Format("q4_1", bits=4, block=32, scale_bytes=2, minimum="stored")
Q5_1 = Format("q5_1", bits=8, block=32, scale_bytes=2, minimum="stored")
Q8_0 = Format("q8_0", bits=8, block=32, scale_bytes=2)
Q4_K = Format("q4_k", bits=4, block=32, scale_bytes=4, minimum="stored")
Q5_K = Format("q5_k", bits=8, block=32, scale_bytes=4, minimum="stored")
Q6_K = Format("q6_k", bits=8, block=16, scale_bytes=4)
_PAIRS = (FLOAT32, INT8, Q4_0, Q4_1, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)
QUADS = {form: replace(form, name=f"{form.name}/quads", quads=True) for form in _PAIRS if form.block in (0, 32)}
"""Formats whose blocks of 32 inputs, or rows of such, may be multiplied as bytes."""
del QUADS[FLOAT32]
FORMATS = {form.name: form for form in (*_PAIRS, *QUADS.values())}


def pack(form: Format, codes: np.ndarray, scales: np.ndarray | None, minima: np.ndarray | None) -> np.ndarray:
    """Interleave a matrix into panels.

    codes: [out, in], float32, int8 or uint8 below 16. scales, minima: [out, in / block], float16 or float32, as `form`
    says. Returns [groups * GROUP, panel_bytes] uint8, rows beyond `out` zero.
    """
    outputs, inputs = codes.shape
    panels = -(-outputs // ROWS_PER_GROUP) * GROUP
    blocks = inputs // form.block_inputs(inputs)
    packed = np.zeros((panels, blocks, form.block_bytes(inputs)), dtype=np.uint8)
    parts = [part for part in (scales, minima) if part is not None and form.scale_bytes]
    at = 0
    for part in parts:
        lanes = _panels(part, panels).view(np.uint8)  # [panels, blocks, 16 * scale_bytes]
        packed[:, :, at : at + lanes.shape[2]] = lanes
        at += lanes.shape[2]
    body = _panels(codes, panels)  # [panels, in, 16]
    if form.quads:
        body = body.reshape(panels, -1, 4, LANES).transpose(0, 1, 3, 2)  # [panels, in / 4, 16, 4]
        body = body if form.bits == 4 else body.view(np.uint8) ^ 128
    if form.bits == 4:
        body = body[:, 0::2] | (body[:, 1::2] << 4)
    packed[:, :, at:] = body.reshape(panels, blocks, -1).view(np.uint8)
    return packed.reshape(panels, -1)


def _panels(rows: np.ndarray, panels: int) -> np.ndarray:
    """[out, n] -> [panels, n, 16], contiguous, zero beyond `out`."""
    padded = np.zeros((panels * LANES, rows.shape[1]), dtype=rows.dtype)
    padded[: rows.shape[0]] = rows
    return np.ascontiguousarray(padded.reshape(panels, LANES, -1).transpose(0, 2, 1))
