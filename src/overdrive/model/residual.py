"""The residual stream of a decoder: what layers read from it, normed, and what they add to it.

The norm between an addition and the next product belongs to neither, so a device may do it with either: `Ops.residual`
chooses. Knows products and norms alone; attention and the order of layers are the network's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from overdrive.model.ops import Ops
    from overdrive.model.transformer import Linear


class Residual(Protocol):
    """One pass's stream. Methods are called in the order of the layers; what they return is valid during the pass."""

    @property
    def value(self) -> Tensor:
        """The stream itself, [T, H], updated in place by `add`."""
        ...

    def project(self, linear: Linear) -> Tensor:
        """linear(norm of the stream): [T, out]."""
        ...

    def gate(self, linear: Linear) -> Tensor:
        """silu(gate) * up of the same for a product whose outputs are (gate, up): [T, out / 2]."""
        ...

    def add(self, linear: Linear, x: Tensor, norm: Tensor) -> None:
        """Add linear(x) to the stream. norm: [H], weight of the norm that whoever comes next reads it through."""
        ...

    def normed(self) -> Tensor:
        """The norm of the stream, [T, H]."""
        ...


class NormedResidual:
    """`Residual` of a device's `Ops`: norms when something is added, both in one operation.

    value: [T, H], rows of any stride. x: what the first `project` or `gate` multiplies, usually the norm of `value`.
    """

    __slots__ = ("_eps", "_ops", "_x", "value")

    def __init__(self, ops: Ops, value: Tensor, x: Tensor, eps: float) -> None:
        self.value = value
        self._ops = ops
        self._x = x
        self._eps = eps

    def project(self, linear: Linear) -> Tensor:
        return linear(self._x)

    def gate(self, linear: Linear) -> Tensor:
        return self._ops.silu_mul(linear(self._x))

    def add(self, linear: Linear, x: Tensor, norm: Tensor) -> None:
        self._x = self._ops.add_rms_norm(self.value, linear(x), norm, self._eps)

    def normed(self) -> Tensor:
        return self._x
