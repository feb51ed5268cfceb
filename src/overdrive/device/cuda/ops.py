"""A decoder's element-wise operations on CUDA: one launch each, sized for one row as well as for thousands.

Knows strides and how a tensor is divided among programs; the arithmetic is in `ops_kernels`, which is imported when the
first `CudaOps` is made. On CPU tensors the kernels run in Triton's interpreter alone; `TorchOps` is their reference.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from overdrive.device.cuda.attention import CudaAttention
from overdrive.device.cuda.few import FewProducts, most_tokens, takes
from overdrive.errors import OverdriveError
from overdrive.model.ops import Angles, Attention
from overdrive.model.transformer import Linear

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
VECTOR = 8
"""Elements a thread moves at once: 16 bytes in half precision."""
WARP = 32
MOST_WARPS = 16
EARLY_MOVES, EARLY_GATES = 256, 16
"""Rows up to which it pays to set up a kernel while the one before still runs (an H200; norms gain at any size)."""
BUSY = 1 << 19
"""Elements from which on there is work for every multiprocessor whatever the size of a part."""


class CudaOps:
    """`overdrive.model.ops.Ops` by Triton kernels, for bfloat16, float16 and float32; rows are independent.

    Elements of a row lie next to each other, rows and heads may have any stride. Nothing is read back, so every method
    can be part of a CUDA graph. early: kernels are set up while those before them still run (programmatic dependent
    launch, Hopper and later): alone the small ones of a layer take 4.0 us instead of 6.0 us then, but between the
    products of a whole step no gain was seen, so no step asks for it. products: of few tokens; without them, those of
    built-in tilings. Raises OverdriveError for a type that the kernels do not compute in.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device, early: bool = False, products: FewProducts | None = None
    ) -> None:
        if dtype not in FLOATS:
            raise OverdriveError(f"the CUDA kernels take bfloat16, float16 or float32, not {dtype}")
        self._dtype = dtype
        self._device = device
        self._early = early
        self._kernels = import_module("overdrive.device.cuda.ops_kernels")
        self._products = FewProducts(device) if products is None else products
        self._most_tokens = most_tokens(dtype, device)

    def empty(self, rows: int, width: int) -> Tensor:
        return torch.empty((rows, width), dtype=self._dtype, device=self._device)

    def copy(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        rows, width = x.shape
        out = self._room(rows, width, out)
        block, warps, parts = divide(rows, width)
        early = self._early and rows <= EARLY_MOVES
        self._kernels.copy_rows[(rows, parts)](
            x, out, x.stride(0), out.stride(0), EARLY=early, WIDTH=width, BLOCK=block,
            num_warps=warps, launch_pdl=early,
        )  # fmt: skip
        return out

    def embed(self, ids: Tensor, table: Tensor, out: Tensor | None = None) -> Tensor:
        rows, width = len(ids), table.shape[1]
        out = self._room(rows, width, out)
        block, warps, parts = divide(rows, width)
        early = self._early and rows <= EARLY_MOVES
        self._kernels.gather_rows[(rows, parts)](
            ids, table, out, table.stride(0), out.stride(0), EARLY=early, WIDTH=width, BLOCK=block,
            num_warps=warps, launch_pdl=early,
        )  # fmt: skip
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        width = x.shape[-1]
        heads, head_stride = (1, 0) if x.dim() == 2 else (x.shape[1], x.stride(1))
        if x.dim() == 2:
            out = self._room(len(x), width, out)
        else:
            out = torch.empty(x.shape, dtype=self._dtype, device=self._device)
        rows = len(x) * heads
        height, block, warps = tile(rows, width)
        self._kernels.norm_rows[(-(-rows // height),)](
            x, weight, out, rows, x.stride(0), head_stride, out.stride(0), eps,
            EARLY=self._early, HEADS=heads, WIDTH=width, BLOCK_ROWS=height, BLOCK=block,
            num_warps=warps, launch_pdl=self._early,
        )  # fmt: skip
        return out

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, width = x.shape
        out = self.empty(rows, width)
        block = next_power(width)
        self._kernels.add_norm_rows[(rows,)](
            residual, x, weight, out, residual.stride(0), x.stride(0), eps,
            EARLY=self._early, WIDTH=width, BLOCK=block, num_warps=norm_warps(block), launch_pdl=self._early,
        )  # fmt: skip
        return out

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        rows, q_heads, width = q.shape
        k_heads, half = k.shape[1], width // 2
        block = next_power(half)
        height, warps = rope_tile(rows, q_heads, block)
        parts = -(-q_heads // height) + -(-k_heads // height)
        self._kernels.rotate[(rows, parts)](
            q, k, positions, cos, sin, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            EARLY=self._early, Q_HEADS=q_heads, K_HEADS=k_heads, HALF=half, BLOCK_HEADS=height, BLOCK_HALF=block,
            num_warps=warps, launch_pdl=self._early,
        )  # fmt: skip

    def attend(self, attention: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, angles: Angles) -> Tensor:
        """Attention of this device rotates in the launch that stores."""
        if isinstance(attention, CudaAttention):
            return attention.rotate_and_attend(layer, q, k, v, angles)
        self.rope(q, k, *angles)
        return attention(layer, q, k, v)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = self.empty(rows, width)
        block, warps, parts = divide(rows, width)
        early = self._early and rows <= EARLY_GATES
        self._kernels.gate_rows[(rows, parts)](
            gate_up, out, gate_up.stride(0), EARLY=early, WIDTH=width, BLOCK=block,
            num_warps=warps, launch_pdl=early,
        )  # fmt: skip
        return out

    def project(self, linear: Linear, x: Tensor) -> Tensor:
        """Of few tokens by products of their own, as `gate`."""
        if len(x) <= self._most_tokens and takes(linear, x):
            return self._products.project(linear, x)
        return linear(x)

    def gate(self, linear: Linear, x: Tensor) -> Tensor:
        if len(x) <= self._most_tokens and takes(linear, x):
            return self._products.gate(linear, x)
        return self.silu_mul(linear(x))

    def _room(self, rows: int, width: int, out: Tensor | None) -> Tensor:
        """`out` where there is one, checked, else a new [rows, width]."""
        if out is None:
            return self.empty(rows, width)
        if out.shape != (rows, width) or out.stride(1) != 1 or out.dtype != self._dtype:
            raise OverdriveError(f"out must be [{rows}, {width}] {self._dtype} with elements of a row side by side")
        return out


def next_power(width: int) -> int:
    """The smallest power of two that is not below `width`."""
    return 1 << (width - 1).bit_length()


def divide(rows: int, width: int) -> tuple[int, int, int]:
    """Elements of a part, its warps, and parts of a row, where every element is for itself.

    Few elements are spread over as many programs as there are warps of them; many go in larger parts.
    """
    warps = 4 if rows * width >= BUSY else 1
    block = min(next_power(width), warps * WARP * VECTOR)
    return block, warps, -(-width // block)


def norm_warps(block: int) -> int:
    """Warps for a row of `block` elements that has to be summed: a vector for each thread, as far as that goes."""
    return max(1, min(MOST_WARPS, block // (WARP * VECTOR)))


def tile(rows: int, width: int) -> tuple[int, int, int]:
    """Rows of a tile of norms, its width, and its warps: narrow rows, as those of heads, are taken several at once."""
    block = next_power(width)
    elements = WARP * VECTOR * (4 if rows * width >= BUSY else 1)
    height = max(1, elements // block)
    return height, block, norm_warps(height * block)


def rope_tile(rows: int, heads: int, block: int) -> tuple[int, int]:
    """Heads that a program rotates, `block` pairs each, and its warps."""
    elements = WARP * VECTOR * (4 if rows * heads * block >= BUSY else 1)
    height = max(1, min(next_power(heads), elements // block))
    return height, max(1, min(MOST_WARPS, height * block // (WARP * VECTOR)))
