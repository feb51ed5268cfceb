"""A step as the target's forward pass sees it: flat tokens with their positions and pages.

Built on the device from device lengths; knows nothing of requests, plans or drafters.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Ragged rows, flattened. Token t belongs to row `rows[t]`; row r's tokens are `offsets[r] : offsets[r+1]`.

    Every token attends to positions `0 .. positions[t]` of its own row (inclusive; less with a sliding window), whose
    keys and values stand in the row's pages: position p in page `page_table[r, p // page_size]`, slot `p % page_size`.

    ids: [T] int64. positions: [T] int64, consecutive within a row. rows: [T] int64.
    offsets: [R + 1] int64. page_table: [R, W] int32, page 0 is the scratch page, W covers every position in the batch.
    writes: [T] int64, `page * page_size + position % page_size` of the place that takes the token's key and value.
    wanted: [N] int64, tokens whose logits are wanted, ascending.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor
    offsets: Tensor
    page_table: Tensor
    writes: Tensor
    wanted: Tensor
