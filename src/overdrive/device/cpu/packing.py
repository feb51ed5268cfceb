"""From weights, as files and tensors hold them, to panels: float32, int8 per output row, or a GGUF's own blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from torch import Tensor

from overdrive.device.cpu.formats import FLOAT32, INT8, LANES, ROWS_PER_GROUP, Format, pack
from overdrive.device.cpu.ggml_blocks import LAYOUTS
from overdrive.errors import OverdriveError

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


def pack_float32(weight: Tensor) -> Packed:
    """weight: [out, in] of any float type."""
    values = _checked(weight)
    return Packed(FLOAT32, pack(FLOAT32, values, None, None), _NO_SCALE, values.shape[1], len(values))


def pack_int8(weight: Tensor) -> Packed:
    """weight: [out, in] of any float type. Symmetric: w ~ scale[row] * code, code in -127 .. 127."""
    values = _checked(weight)
    scale = np.abs(values).max(axis=1) / np.float32(127)
    codes = np.rint(values / np.where(scale > 0, scale, np.float32(1))[:, None]).astype(np.int8)
    padded = np.zeros(-(-len(values) // ROWS_PER_GROUP) * ROWS_PER_GROUP, dtype=np.float32)
    padded[: len(scale)] = scale
    return Packed(INT8, pack(INT8, codes, None, None), padded, values.shape[1], len(values))


def pack_gguf(raw: np.ndarray, kind: int, outputs: int, inputs: int) -> Packed:
    """Blocks of a GGUF tensor as they lie in the file: `raw` bytes of `outputs` rows, output-major.

    The types of `ggml_blocks.LAYOUTS` keep their codes and scales: the product is that of the dequantised weights up to
    the order of summation. Every other type is dequantised and kept in float32.
    """
    raw = np.ascontiguousarray(raw).view(np.uint8).reshape(outputs, -1)
    layout = LAYOUTS.get(Kind(kind))
    if layout is None:
        values = dequantize(raw, Kind(kind)).reshape(outputs, inputs)
        return Packed(FLOAT32, pack(FLOAT32, values, None, None), _NO_SCALE, inputs, outputs)
    codes, scales, minima = layout.split(raw.reshape(-1, layout.size))
    minima = None if minima is None else minima.reshape(outputs, -1)
    panels = pack(layout.form, codes.reshape(outputs, inputs), scales.reshape(outputs, -1), minima)
    return Packed(layout.form, panels, _NO_SCALE, inputs, outputs)


def _checked(weight: Tensor) -> np.ndarray:
    if weight.dim() != 2 or weight.shape[1] % 2:
        raise OverdriveError(f"a packed weight is [out, in] with an even number of inputs, got {tuple(weight.shape)}")
    return weight.detach().float().contiguous().numpy()


def _codes(form: Format, body: np.ndarray, panel: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """Codes of some rows as float32, [n, blocks, block inputs]. body: [panels, blocks, code bytes]."""
    if form.bits == 4:
        bytes_ = body.reshape(*body.shape[:2], -1, LANES)[panel, :, :, lane]
        codes = np.stack([bytes_ & 15, bytes_ >> 4], axis=-1).reshape(len(panel), body.shape[1], -1).astype(np.float32)
        return codes - np.float32(8) if form.minimum == "centre" else codes
    kind = np.int8 if form.bits == 8 else np.float32
    return body.view(kind).reshape(*body.shape[:2], -1, LANES)[panel, :, :, lane].astype(np.float32)
