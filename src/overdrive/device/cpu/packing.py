"""From weights, as files and tensors hold them, to panels: float32, int8 per output row, or a GGUF's own blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from torch import Tensor

from overdrive.device.cpu.formats import FLOAT32, INT8, LANES, QUADS, ROWS_PER_GROUP, Format, pack
from overdrive.device.cpu.ggml_blocks import LAYOUTS
from overdrive.device.cpu.lanes import byte_dots
from overdrive.errors import OverdriveError

PIECE = 64 << 20  # bytes; what is not used of one is never touched
LINE = 64  # bytes of a cache line
QUAD_INPUTS = 32  # inputs that share a scale of the activations
_NO_SCALE = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight matrix in panels.

    panels: [groups * 4, panel_bytes] uint8. scale: [padded out] float32 per output row, empty unless the format has it.
    """

    form: Format
    panels: np.ndarray
    scale: np.ndarray
    inputs: int
    outputs: int

    def rows(self, index: np.ndarray) -> np.ndarray:
        """The float32 weights of some output rows, [n, in]: an embedding look-up in a tied head."""
        panel, lane = np.divmod(index, LANES)
        form, blocks = self.form, self.inputs // self.form.block_inputs(self.inputs)
        view = self.panels.reshape(len(self.panels), blocks, -1)
        codes = _codes(form, view[:, :, form.head_bytes :], panel, lane)  # [n, blocks, block inputs]
        if form.scaled_rows:
            codes = codes * self.scale[index][:, None, None]
        if form.block:
            heads = view[:, :, : form.head_bytes].view(np.float16 if form.scale_bytes == 2 else np.float32)
            codes = codes * heads[panel, :, lane].astype(np.float32)[:, :, None]
            if form.minimum == "stored":
                codes = codes + heads[panel, :, LANES + lane].astype(np.float32)[:, :, None]
        return codes.reshape(len(index), self.inputs)


class Shelf:
    """Memory of weights: matrices one right behind another, in the order in which they are put there.

    Products ask for weights ahead of those they work on, past the end of their own matrix into the next one. The memory
    comes in pieces of many megabytes, which numpy asks the system to make of huge pages: with small ones the look-up
    of addresses takes as long as reading.
    """

    def __init__(self) -> None:
        self._room = np.empty(0, dtype=np.uint8)

    def put(self, packed: Packed) -> Packed:
        """The same matrix in this memory."""
        size = -(-packed.panels.nbytes // LINE) * LINE
        if size > len(self._room):
            piece = np.empty(max(size, PIECE) + LINE, dtype=np.uint8)
            self._room = piece[-piece.ctypes.data % LINE :]
        place, self._room = self._room[: packed.panels.nbytes], self._room[size:]
        panels = place.reshape(packed.panels.shape)
        panels[:] = packed.panels
        return replace(packed, panels=panels)


def pack_float32(weight: Tensor) -> Packed:
    """weight: [out, in] of any float type."""
    values = _checked(weight)
    return Packed(FLOAT32, pack(FLOAT32, values, None, None), _NO_SCALE, values.shape[1], len(values))


def pack_int8(weight: Tensor, dots: bool | None = None) -> Packed:
    """weight: [out, in] of any float type. Symmetric: w ~ scale[row] * code, code in -127 .. 127. dots: `_ordered`."""
    values = _checked(weight)
    scale = np.abs(values).max(axis=1) / np.float32(127)
    codes = np.rint(values / np.where(scale > 0, scale, np.float32(1))[:, None]).astype(np.int8)
    padded = np.zeros(-(-len(values) // ROWS_PER_GROUP) * ROWS_PER_GROUP, dtype=np.float32)
    padded[: len(scale)] = scale
    form = _ordered(INT8, values.shape[1], dots)
    return Packed(form, pack(form, codes, None, None), padded, values.shape[1], len(values))


def pack_gguf(raw: np.ndarray, kind: int, outputs: int, inputs: int, dots: bool | None = None) -> Packed:
    """Blocks of a GGUF tensor as they lie in the file: `raw` bytes of `outputs` rows, output-major.

    The types of `ggml_blocks.LAYOUTS` keep their codes and scales: the product is that of the dequantised weights up to
    the order of summation. Every other type is dequantised and kept in float32. dots: see `_ordered`.
    """
    raw = np.ascontiguousarray(raw).view(np.uint8).reshape(outputs, -1)
    layout = LAYOUTS.get(Kind(kind))
    if layout is None:
        values = dequantize(raw, Kind(kind)).reshape(outputs, inputs)
        return Packed(FLOAT32, pack(FLOAT32, values, None, None), _NO_SCALE, inputs, outputs)
    codes, scales, minima = layout.split(raw.reshape(-1, layout.size))
    minima = None if minima is None else minima.reshape(outputs, -1)
    form = _ordered(layout.form, inputs, dots)
    panels = pack(form, codes.reshape(outputs, inputs), scales.reshape(outputs, -1), minima)
    return Packed(form, panels, _NO_SCALE, inputs, outputs)


def _ordered(form: Format, inputs: int, dots: bool | None) -> Format:
    """The format with its codes in quads where they can be multiplied as bytes. dots: None where the machine can."""
    wanted = byte_dots() if dots is None else dots
    return QUADS.get(form, form) if wanted and inputs % QUAD_INPUTS == 0 else form


def _checked(weight: Tensor) -> np.ndarray:
    if weight.dim() != 2 or weight.shape[1] % 2:
        raise OverdriveError(f"a packed weight is [out, in] with an even number of inputs, got {tuple(weight.shape)}")
    return weight.detach().float().contiguous().numpy()


def _codes(form: Format, body: np.ndarray, panel: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """Codes of some rows as float32, [n, blocks, block inputs]. body: [panels, blocks, code bytes]."""
    if form.quads:
        quads = body.reshape(*body.shape[:2], -1, LANES, 4)[panel, :, :, lane]  # [n, blocks, in / 4 (or 8), 4]
        if form.bits == 8:
            return (quads ^ 128).view(np.int8).reshape(len(panel), body.shape[1], -1).astype(np.float32)
        codes = np.stack([quads & 15, quads >> 4], axis=-2).reshape(len(panel), body.shape[1], -1).astype(np.float32)
        return codes - np.float32(8) if form.minimum == "centre" else codes
    if form.bits == 4:
        bytes_ = body.reshape(*body.shape[:2], -1, LANES)[panel, :, :, lane]
        codes = np.stack([bytes_ & 15, bytes_ >> 4], axis=-1).reshape(len(panel), body.shape[1], -1).astype(np.float32)
        return codes - np.float32(8) if form.minimum == "centre" else codes
    kind = np.int8 if form.bits == 8 else np.float32
    return body.view(kind).reshape(*body.shape[:2], -1, LANES)[panel, :, :, lane].astype(np.float32)
