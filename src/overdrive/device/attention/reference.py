"""Paged attention in plain torch: slow, clear, any dtype. Every fast path is compared with this one.

Keys and values live in pages; a row's page table says which. Knows the batch and the pages, nothing of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from overdrive.device.batch import Batch


class Heads(Protocol):
    """What attention must know of a network; a `ModelConfig` says so, and so may a draft network's config.

    layers: with keys and values of their own. heads, kv_heads: of queries, and of keys and values. head_dim: width of
    each. window: positions that a token of a layer sees, itself included; 0 for all.
    """

    @property
    def layers(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    def window(self, layer: int) -> int: ...


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of every layer: k_pages[layer], v_pages[layer] are [n_pages, Hkv, page_size, D].

    Page 0 is scratch: padding writes there and nobody reads it. The tensors are written in place by attention.
    """

    k_pages: list[Tensor]
    v_pages: list[Tensor]
    page_size: int

    @classmethod
    def allocate(
        cls, config: Heads, n_pages: int, page_size: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> PagedKV:
        """Zeroed storage for `n_pages` pages, the scratch page included.

        In main memory it is claimed but not touched: a page costs memory from its first use on.
        """
        shape = (n_pages, config.kv_heads, page_size, config.head_dim)

        def zeros() -> Tensor:
            if torch.device(device).type != "cpu":
                return torch.zeros(shape, dtype=dtype, device=device)
            untouched = np.zeros(shape[0] * shape[1] * shape[2] * shape[3] * dtype.itemsize, np.uint8)
            return torch.from_numpy(untouched).view(dtype).view(shape)

        def layers() -> list[Tensor]:
            return [zeros() for _ in range(config.layers)]

        return cls(layers(), layers(), page_size)

    def copy_page(self, source: int, target: int) -> None:
        """All layers' keys and values of one page onto another, in whatever order attention keeps them."""
        for pages in (*self.k_pages, *self.v_pages):
            pages[target] = pages[source]

    def write(self, layer: int, writes: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [T, Hkv, D] at flat places `writes` [T] = page * page_size + slot."""
        pages, slots = writes // self.page_size, writes % self.page_size
        self.k_pages[layer][pages, :, slots] = k
        self.v_pages[layer][pages, :, slots] = v

    def gather(self, layer: int, pages: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions 0 .. length of a row with these pages [W]: two copies of [Hkv, length, D]."""
        used = pages[: -(-length // self.page_size)].long()

        def flat(stored: Tensor) -> Tensor:
            return stored[used].transpose(0, 1).flatten(1, 2)[:, :length]

        return flat(self.k_pages[layer]), flat(self.v_pages[layer])


class ReferenceAttention:
    """`Attention` of one batch: softmax(q k / sqrt(D)) v, row by row, over the row's own pages.

    A token at position p sees positions max(start of its row, p - window + 1) .. p (without a window, start .. p), but
    for those in the row's gap. Tokens behind the last row are padding: nothing is stored for them, and they get zeros.
    """

    def __init__(self, kv: PagedKV, batch: Batch, config: Heads) -> None:
        self._kv = kv
        self._batch = batch
        self._config = config
        bounds = batch.offsets.tolist()
        self._tokens = bounds[-1]
        # Rows without tokens (padding) have nothing to attend.
        self._rows = [(r, a, b) for r, (a, b) in enumerate(pairwise(bounds)) if a < b]
        self._lengths = [int(batch.positions[a:b].max()) + 1 for _, a, b in self._rows]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, k, v)
        out = torch.zeros_like(q)
        for (row, begin, end), length in zip(self._rows, self._lengths, strict=True):
            keys, values = self._kv.gather(layer, self._batch.page_table[row], length)
            hidden = self._hidden(layer, row, self._batch.positions[begin:end], length)
            out[begin:end] = self._attend_row(q[begin:end], keys, values, hidden)
        return out.flatten(1)

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """As `Stores`."""
        self._kv.write(layer, self._batch.writes[: self._tokens], k[: self._tokens], v[: self._tokens])

    def _hidden(self, layer: int, row: int, positions: Tensor, length: int) -> Tensor:
        """Which places 0 .. length - 1 tokens of this row at `positions` [t] do not see, [t, length] bool."""
        places = torch.arange(length, device=positions.device)
        begin, end = self._batch.gaps[row]
        distance = positions[:, None] - places
        hidden = (distance < 0) | (places < self._batch.starts[row]) | ((places >= begin) & (places < end))
        if window := self._config.window(layer):
            hidden = hidden | (distance >= window)
        return hidden

    @staticmethod
    def _attend_row(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
        """q [t, Hq, D], keys and values [Hkv, length, D], hidden [t, length] -> [t, Hq, D]."""
        kv_heads, _, head_dim = keys.shape
        group = q.view(len(q), kv_heads, -1, head_dim)  # query head h reads key head h // (Hq / Hkv)
        scores = torch.einsum("tkgd,kld->tkgl", group, keys) * head_dim**-0.5
        weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(dim=-1)
        return torch.einsum("tkgl,kld->tkgd", weights, values).reshape(q.shape)
