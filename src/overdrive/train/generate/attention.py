"""Attention over a static cache: every slot of the batch has its own contiguous run of positions.

Cache layout per layer: keys and values [slots, length, Hkv, D]. What lies in a slot beyond its row's length is left
from earlier rows and never counts. Knows nothing of sampling, graphs or jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class SlotCache:
    """keys, values: [layers, slots, length, Hkv, D]."""

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(
        cls, config: ModelConfig, slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> SlotCache:
        shape = (config.layers, slots, length, config.kv_heads, config.head_dim)
        # Zeros: a masked key still is multiplied by a probability of 0, and 0 times an old NaN would be NaN.
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    def store(self, layer: int, places: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put k, v [T, Hkv, D] at places [T] int64, counted over slots and positions; the layer's keys and values."""
        keys, values = self.keys[layer], self.values[layer]  # [slots, length, Hkv, D]
        keys.flatten(0, 1).index_copy_(0, places, k)
        values.flatten(0, 1).index_copy_(0, places, v)
        return keys, values


class MaskedDecode:
    """`Attention` of one new token per slot in plain torch, the reference: reads `limit` positions of all and masks.

    places: [B] int64, where the new tokens' keys go. lengths: [B] int32: row b attends to the first lengths[b]
    positions of slot b, the new one included, or to the last of them where the layer has a window. limit: no row that
    matters is longer.
    """

    def __init__(self, cache: SlotCache, config: ModelConfig, places: Tensor, lengths: Tensor, limit: int) -> None:
        self._cache, self._config, self._places, self._limit = cache, config, places, limit
        positions, ends = torch.arange(limit, device=places.device), lengths.unsqueeze(1)
        windows = {config.window(layer) for layer in range(config.layers)}
        self._masks = {
            window: ((positions < ends) & (positions >= ends - (window or limit)))[:, None, None] for window in windows
        }  # [B, 1, 1, limit]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (x[:, : self._limit].transpose(1, 2) for x in self._cache.store(layer, self._places, k, v))
        # The G query heads of a KV head stand as G query positions, so that no key is read or copied G times.
        grouped = q.unflatten(1, (keys.shape[1], -1))  # [B, Hkv, G, D]
        mask = self._masks[self._config.window(layer)]
        return F.scaled_dot_product_attention(grouped, keys, values, mask).flatten(1)


class FlashDecode:
    """`MaskedDecode` by torch's FlashAttention on CUDA: reads lengths[b] positions of slot b and not one more."""

    def __init__(self, cache: SlotCache, config: ModelConfig, places: Tensor, lengths: Tensor, limit: int) -> None:
        self._cache, self._config, self._places, self._lengths = cache, config, places, lengths
        self._rows = torch.arange(len(places) + 1, device=places.device, dtype=torch.int32)
        self._starts = self._rows * cache.length

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (x.flatten(0, 1) for x in self._cache.store(layer, self._places, k, v))
        window = self._config.window(layer)
        attended, *_ = torch.ops.aten._flash_attention_forward(
            q,
            keys,
            values,
            self._rows,
            self._starts,
            1,
            self._cache.length,
            0.0,
            False,
            False,
            window_size_left=window - 1 if window else -1,
            window_size_right=0 if window else -1,
            seqused_k=self._lengths,
        )
        return attended.flatten(1)


DecodeAttention = type[MaskedDecode] | type[FlashDecode]


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """`Attention` of a group of whole prompts, each padded on the right to `padded` tokens. places: [T] int64.

    Padding needs no mask: no prompt token sees what comes after it, and what padding leaves in the cache stands at
    positions that are overwritten before they are read.
    """

    cache: SlotCache
    config: ModelConfig
    places: Tensor
    padded: int

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.cache.store(layer, self.places, k, v)
        q, k, v = (x.unflatten(0, (-1, self.padded)).transpose(1, 2) for x in (q, k, v))  # [n, heads, P, D]
        window = self.config.window(layer)
        if 0 < window < self.padded:
            mask = torch.ones((self.padded, self.padded), dtype=torch.bool, device=q.device).tril().triu(1 - window)
            attended = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        else:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return attended.transpose(1, 2).reshape(-1, self.config.heads * self.config.head_dim)


@torch.inference_mode()
def decode_attention(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> DecodeAttention:
    """The fastest one that gives the reference's values on this device: tried, for builds of torch differ."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return MaskedDecode
    cache = SlotCache.allocate(config, 5, 256, dtype, device)
    cache.keys.normal_()
    cache.values.normal_()
    lengths = torch.tensor([1, 2, 77, 200, 256], dtype=torch.int32, device=device)
    places = torch.arange(5, device=device) * 256 + lengths - 1
    heads = (config.heads, config.kv_heads, config.kv_heads)
    q, k, v = (torch.randn((5, count, config.head_dim), dtype=dtype, device=device) for count in heads)
    wanted = MaskedDecode(cache, config, places, lengths, 256)(0, q, k, v)
    try:
        found = FlashDecode(cache, config, places, lengths, 256)(0, q, k, v)
    except (RuntimeError, TypeError, AttributeError):
        return MaskedDecode
    close = found.shape == wanted.shape and bool((found - wanted).abs().max() < 0.05)
    return FlashDecode if close else MaskedDecode
