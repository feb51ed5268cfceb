"""The elementwise parts of a decoder layer on the CPU, float32, each in one pass and one call."""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.device.cpu.elementwise_kernels import (
    ROWS,
    copy_kernel,
    embed_kernel,
    gate_kernel,
    norm_kernel,
    rope_kernel,
)
from overdrive.device.cpu.team import Call, Team
from overdrive.errors import OverdriveError
from overdrive.model.ops import Angles, Attention
from overdrive.model.transformer import Linear


class CpuOps:
    """Norms, rotary positions and the gated activation; rows are independent, bit for bit.

    The methods and their meaning are those of `overdrive.model.ops.Ops`. Rows of the inputs may have any stride; within
    a row elements, and for rope the heads, lie next to each other.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._copy = Call(team, copy_kernel(), "q" * 6)
        self._embed = Call(team, embed_kernel(), "q" * 6)
        self._norm = Call(team, norm_kernel(), "q" * 11 + "d")
        self._rope = Call(team, rope_kernel(), "q" * 11)
        self._gate = Call(team, gate_kernel(), "q" * 5)

    def empty(self, rows: int, width: int) -> Tensor:
        """A new [rows, width] float32."""
        return self._team.empty(rows, width)

    def copy(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x [T, H] into `out` or a new tensor."""
        rows, width = x.shape
        out = self._room(rows, width, out)
        call = self._copy if rows > ROWS else self._copy.alone
        call(x.data_ptr(), 4 * x.stride(0), rows, out.data_ptr(), 4 * out.stride(0), width)
        return out

    def embed(self, ids: Tensor, table: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows `ids` [T] int64 of `table` [V, H], contiguous float32: [T, H]."""
        tokens, width = len(ids), table.shape[1]
        out = self._room(tokens, width, out)
        call = self._embed if tokens > ROWS else self._embed.alone
        call(ids.data_ptr(), tokens, table.data_ptr(), out.data_ptr(), 4 * out.stride(0), width)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        """x [T, H] or [T, heads, D] over its last dimension, into `out` (for [T, H]) or a new contiguous tensor."""
        out = self._room(len(x), x.shape[1], out) if x.dim() == 2 else self._team.empty(*x.shape)
        inner, inner_stride = (1, 0) if x.dim() == 2 else (x.shape[1], 4 * x.stride(1))
        call = self._norm if len(x) > ROWS else self._norm.alone
        call(
            x.data_ptr(), len(x), inner, 4 * x.stride(0), inner_stride, 0, 0,
            weight.data_ptr(), out.data_ptr(), 4 * out.stride(0), x.shape[-1], eps,
        )  # fmt: skip
        return out

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x [T, H], in place; returns the norm of the sum."""
        rows, width = x.shape
        out = self._team.empty(rows, width)
        call = self._norm if rows > ROWS else self._norm.alone
        call(
            x.data_ptr(), rows, 1, 4 * x.stride(0), 0, residual.data_ptr(), 4 * residual.stride(0),
            weight.data_ptr(), out.data_ptr(), 4 * width, width, eps,
        )  # fmt: skip
        return out

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate q [T, Hq, D] and k [T, Hkv, D] in place by the angles of `positions`; cos, sin: [positions, D / 2]."""
        call = self._rope if len(q) > ROWS else self._rope.alone
        call(
            q.data_ptr(), 4 * q.stride(0), q.shape[1], k.data_ptr(), 4 * k.stride(0), k.shape[1],
            len(q), positions.data_ptr(), cos.data_ptr(), sin.data_ptr(), q.shape[2] // 2,
        )  # fmt: skip

    def attend(self, attention: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, angles: Angles) -> Tensor:
        """`rope`, then `attention` of the layer."""
        self.rope(q, k, *angles)
        return attention(layer, q, k, v)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up [T, 2 F] = (gate, up); a new [T, F]."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = self._team.empty(rows, width)
        call = self._gate if rows > ROWS else self._gate.alone
        call(gate_up.data_ptr(), 4 * gate_up.stride(0), out.data_ptr(), rows, width)
        return out

    def project(self, linear: Linear, x: Tensor) -> Tensor:
        """linear(x)."""
        return linear(x)

    def gate(self, linear: Linear, x: Tensor) -> Tensor:
        """`silu_mul` of linear(x)."""
        return self.silu_mul(linear(x))

    def _room(self, rows: int, width: int, out: Tensor | None) -> Tensor:
        """`out` where there is one, checked, else a new [rows, width]."""
        if out is None:
            return self._team.empty(rows, width)
        if out.shape != (rows, width) or out.stride(1) != 1 or out.dtype != torch.float32:
            raise OverdriveError(f"out must be [{rows}, {width}] float32 with elements of a row next to each other")
        return out
