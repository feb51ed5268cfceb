"""Keys and values of a batch go into their pages, as they are or together with rotary position embedding.

Knows pages and places, nothing of attention. Tensors on a CUDA device are written by Triton kernels, others by the
plain torch forms beside them, which have the same static shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overdrive.errors import OverdriveError


def store(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, writes: Tensor, offsets: Tensor) -> None:
    """k, v [T, Hkv, D], rows of any stride, go to places `writes` [T] of pages [n_pages, Hkv, page_size, D].

    Tokens from `offsets[-1]` on are padding, whose numbers may be NaN: they are not stored.
    """
    (store_triton if k.is_cuda else store_torch)(k, v, k_pages, v_pages, writes, offsets)


def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    writes: Tensor,
    offsets: Tensor,
) -> None:
    """Rotate q [T, Hq, D] in place, pair (i, i + D/2); store k [T, Hkv, D] rotated and v [T, Hkv, D] as it is.

    q, k, v: rows of any stride, as views of one product are; k itself keeps its values. positions: [T] int64, rows of
    cos and sin [max_len, D/2], in the model's dtype or float32. The arithmetic is float32 (float64 in the torch form of
    a float64 model), rounded once. The rest as in `store`; padding tokens of q are left in any state.
    """
    form = rope_store_triton if q.is_cuda else rope_store_torch
    form(q, k, v, positions, cos, sin, k_pages, v_pages, writes, offsets)


def store_torch(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, writes: Tensor, offsets: Tensor) -> None:
    """`store` in plain torch: a padding token writes back what stands at its place."""
    page_size = k_pages.shape[2]
    pages, slots = writes // page_size, writes % page_size
    real = (torch.arange(len(writes), device=writes.device) < offsets[-1])[:, None, None]
    for x, stored in ((k, k_pages), (v, v_pages)):
        stored[pages, :, slots] = torch.where(real, x, stored[pages, :, slots])


def rope_store_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    writes: Tensor,
    offsets: Tensor,
) -> None:
    """`rope_store` in plain torch."""
    wide = torch.promote_types(q.dtype, torch.float32)
    c, s = cos[positions].unsqueeze(1).to(wide), sin[positions].unsqueeze(1).to(wide)  # [T, 1, D/2]

    def rotated(x: Tensor) -> Tensor:
        first, second = x.to(wide).chunk(2, dim=-1)
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)

    q.copy_(rotated(q))
    store_torch(rotated(k), v, k_pages, v_pages, writes, offsets)


def store_triton(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, writes: Tensor, offsets: Tensor, early: bool = False
) -> None:
    """`store` by one launch for both. early: set up while the kernel before still runs."""
    from overdrive.device.cuda.store_kernels import store_kernel

    tokens, kv_heads, head_dim = k.shape
    require_dense(k, v)
    store_kernel[(tokens,)](
        k, v, k.stride(0), v.stride(0), k_pages, v_pages, writes, offsets, len(offsets) - 1,
        EARLY=early, KV_HEADS=kv_heads, HEADS=power_of_two(kv_heads), PAGE=k_pages.shape[2], D=head_dim,
        WIDTH=power_of_two(head_dim), num_warps=4, launch_pdl=early,
    )  # fmt: skip


def rope_store_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    writes: Tensor,
    offsets: Tensor,
    early: bool = False,
) -> None:
    """`rope_store` by one launch for all three. early: set up while the kernel before still runs."""
    from overdrive.device.cuda.store_kernels import rope_store_kernel

    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    require_dense(q, k, v)
    group = heads // kv_heads
    rope_store_kernel[(tokens, kv_heads)](
        q, k, v, q.stride(0), k.stride(0), v.stride(0), positions, cos, sin, k_pages, v_pages,
        writes, offsets, len(offsets) - 1, EARLY=early, GROUP=group, HEADS=power_of_two(group), KV_HEADS=kv_heads,
        PAGE=k_pages.shape[2], D=head_dim, HALF=power_of_two(head_dim // 2), num_warps=1 if group <= 4 else 2,
        launch_pdl=early,
    )  # fmt: skip


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def require_dense(*tensors: Tensor) -> None:
    """Raises OverdriveError for a tensor [T, heads, D] of whose tokens heads do not stand next to each other."""
    for x in tensors:
        if x.stride()[1:] != (x.shape[2], 1):
            raise OverdriveError(f"heads must stand next to each other, [T, heads, D]; these have strides {x.stride()}")
