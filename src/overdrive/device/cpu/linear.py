"""y = x @ W.T + bias on the CPU with packed weights: every weight is read once for all token rows of a call.

A token's result is bit-equal whatever the number of rows, whoever its neighbours are and however many threads run.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from overdrive.device.cpu.dot_kernels import INPUTS, RECORD, dot_rows, quantise_rows
from overdrive.device.cpu.formats import LANES, Format
from overdrive.device.cpu.lanes import byte_dots
from overdrive.device.cpu.linear_kernels import FEW_ROWS, few_rows, many_rows, pack_rows
from overdrive.device.cpu.packing import Packed, Shelf
from overdrive.device.cpu.team import Call, Team
from overdrive.device.cpu.tiles import TALL, WIDE
from overdrive.errors import OverdriveError

ALONE = 8  # rows that are quantised sooner than the others are awake


class LinearKernels:
    """The compiled products of one team, by weight format; compiled on first use (seconds), then cached on disk."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.shelf = Shelf()
        self.pack_rows = Call(team, pack_rows(), "q" * 5)
        self.quantise_rows = Call(team, quantise_rows(), "q" * 6) if byte_dots() else self.pack_rows
        self._calls: dict[Format, tuple[Call, Call]] = {}

    def calls(self, form: Format) -> tuple[Call, Call]:
        """Kernels for few rows and for many; one for all where codes are multiplied as bytes."""
        if form not in self._calls:
            makers = (dot_rows,) if form.quads else (few_rows, many_rows)
            layout = "q" * (12 if form.quads else 13)
            calls = [Call(self.team, make(form), layout) for make in makers]
            self._calls[form] = calls[0], calls[-1]
        return self._calls[form]


class PackedLinear:
    """A linear layer over packed weights. Called with x [T, in] float32, returns [T, out] float32."""

    def __init__(self, kernels: LinearKernels, packed: Packed, bias: Tensor | None = None) -> None:
        self.packed = packed = kernels.shelf.put(packed)
        self._kernels = kernels
        self._few, self._many = kernels.calls(packed.form)
        self._bias = _padded(bias, len(packed.panels) * LANES)
        self._weights = packed.panels.ctypes.data
        self._scale = packed.scale.ctypes.data
        self._bias_address = self._bias.ctypes.data if bias is not None else 0
        self._panel_bytes = packed.panels.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        rows, inputs = x.shape
        if inputs != self.packed.inputs or x.dtype != torch.float32:
            raise OverdriveError(f"linear takes [T, {self.packed.inputs}] float32, got {tuple(x.shape)} {x.dtype}")
        x = x if x.stride(1) == 1 else x.contiguous()
        y = self._kernels.team.empty(rows, self.packed.outputs)
        if rows and self.packed.form.quads:
            self._multiply_bytes(x, y, rows)
        elif 0 < rows <= FEW_ROWS:
            self._launch(self._few, x.data_ptr(), y, rows, 4 * x.stride(0), 0, 0)
        elif rows:
            self._multiply_many(x, y, rows)
        return y

    def rows(self, index: Tensor) -> Tensor:
        """The weights of some output rows, [n, in] float32: token embeddings, where the head is tied to them."""
        return torch.from_numpy(self.packed.rows(index.numpy()))

    def _multiply_bytes(self, x: Tensor, y: Tensor, rows: int) -> None:
        stride = self.packed.inputs // INPUTS * RECORD
        blocks = self._kernels.team.scratch(rows * stride)
        quantise = self._kernels.quantise_rows
        call = quantise if rows > ALONE else quantise.alone
        call(x.data_ptr(), 4 * x.stride(0), rows, self.packed.inputs, blocks, stride)
        self._launch(self._few, blocks, y, rows, stride, self._kernels.team.threads)

    def _multiply_many(self, x: Tensor, y: Tensor, rows: int) -> None:
        inputs, team = self.packed.inputs, self._kernels.team
        activations = 4 * inputs * (rows + TALL)
        panel = 4 * inputs * LANES * WIDE  # decoded weights of one thread
        packed = team.scratch(activations + team.threads * panel)
        self._kernels.pack_rows(x.data_ptr(), packed, rows, 4 * x.stride(0), inputs)
        self._launch(self._many, packed, y, rows, 0, packed + activations, panel)

    def _launch(self, call: Call, x: int, y: Tensor, rows: int, x_stride: int, *rest: int) -> None:
        packed = self.packed
        call(
            self._weights,
            self._scale,
            self._bias_address,
            x,
            y.data_ptr(),
            rows,
            x_stride,
            4 * packed.outputs,
            packed.inputs,
            packed.outputs,
            self._panel_bytes,
            *rest,
        )


def _padded(bias: Tensor | None, outputs: int) -> np.ndarray:
    padded = np.zeros(outputs, dtype=np.float32)
    if bias is not None:
        padded[: len(bias)] = bias.detach().float().numpy()
    return padded
