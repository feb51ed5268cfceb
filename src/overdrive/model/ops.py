"""The element-wise parts of a decoder, behind one interface, and their plain torch form.

A device may bring its own `Ops`; `TorchOps` runs everywhere, in any dtype, and is what the others are compared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from overdrive.model.transformer import Linear


class Attention(Protocol):
    """Called once per layer of a forward pass; stores the batch's keys and values and attends over the rows' pages.

    q: [T, Hq, D], k and v: [T, Hkv, D], position-encoded; views, valid during the call. Returns [T, Hq * D].
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Stores(Protocol):
    """What attention stores, where nothing is to be attended."""

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keys and values of the batch's tokens, [T, Hkv, D] each, position-encoded, go to the rows' pages."""
        ...


class Angles(NamedTuple):
    """What rotates queries and keys: `positions` [T] int64, rows of the tables cos and sin, [max_model_len, D/2]."""

    positions: Tensor
    cos: Tensor
    sin: Tensor


class Ops(Protocol):
    """What a decoder needs beside matrix products and attention. T tokens, D the head width, F the MLP width.

    out, where a method takes it: [T, H], rows of any stride, elements of a row next to each other: usually columns of a
    wider buffer, which thereby becomes a concatenation without a pass of its own. It is returned. None: a new tensor.
    """

    def empty(self, rows: int, width: int) -> Tensor:
        """A new [rows, width] of the model's type, to be filled through `out`; holds anything until then."""
        ...

    def copy(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x [T, H], rows of any stride, as it is now."""
        ...

    def embed(self, ids: Tensor, table: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows `ids` [T] int64 of `table` [V, H]: [T, H]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        """x / rms(x) * weight over the last dimension; x is [T, H] or [T, heads, D], not necessarily contiguous.

        out: for [T, H] only.
        """
        ...

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x [T, H] to `residual` [T, H] in place and return the norm of the sum, a new [T, H]."""
        ...

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate q [T, Hq, D] and k [T, Hkv, D] in place: pair (i, i + D/2) by the angle of (position, i).

        positions: [T] int64, rows of the tables cos and sin [max_model_len, D/2]. Where the angle is not that of the
        batch's position, row p of the tables holds what is wanted at p: a draft network rotates the pair at position p
        as p - 1, so its tables have one row in front.
        """
        ...

    def attend(self, attention: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, angles: Angles) -> Tensor:
        """`rope` and then `attention` of the layer, which a device may do in fewer launches. Returns [T, Hq * D]."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up [T, 2F] = (gate, up); a new [T, F]."""
        ...

    def project(self, linear: Linear, x: Tensor) -> Tensor:
        """linear(x) for x [T, in]: a new [T, out], which a device may make in a way of its own."""
        ...

    def gate(self, linear: Linear, x: Tensor) -> Tensor:
        """`silu_mul` of linear(x), for a linear whose outputs are (gate, up): a new [T, F]."""
        ...


class TorchOps:
    """`Ops` in plain torch. Norms accumulate in float32 or better, as the reference implementations do.

    dtype, device: of the model, and so of `empty`.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self._dtype = dtype
        self._device = device

    def empty(self, rows: int, width: int) -> Tensor:
        return torch.empty((rows, width), dtype=self._dtype, device=self._device)

    def copy(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return x.clone() if out is None else out.copy_(x)

    def embed(self, ids: Tensor, table: Tensor, out: Tensor | None = None) -> Tensor:
        rows = F.embedding(ids, table)
        return rows if out is None else out.copy_(rows)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        normed = F.rms_norm(x, weight.shape, weight, eps)
        return normed if out is None else out.copy_(normed)

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual += x
        return F.rms_norm(residual, weight.shape, weight, eps)

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)  # [T, 1, D/2]
        for x in (q, k):
            first, second = x.chunk(2, dim=-1)
            x.copy_(torch.cat((first * c - second * s, second * c + first * s), dim=-1))

    def attend(self, attention: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, angles: Angles) -> Tensor:
        self.rope(q, k, *angles)
        return attention(layer, q, k, v)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def project(self, linear: Linear, x: Tensor) -> Tensor:
        return linear(x)

    def gate(self, linear: Linear, x: Tensor) -> Tensor:
        return self.silu_mul(linear(x))
