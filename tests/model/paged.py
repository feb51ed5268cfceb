"""Helpers of the model tests: batches from known lengths, and whole-sequence logits through paged attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.model.transformer import Transformer


def make_batch(rows: Sequence[tuple[list[int], int]], pages: Sequence[list[int]], page_size: int) -> Batch:
    """Rows of (ids fed, position of the first), each with the pages of its sequence; every token's logits wanted."""
    ids = [i for fed, _ in rows for i in fed]
    positions = [start + n for fed, start in rows for n in range(len(fed))]
    owners = [r for r, (fed, _) in enumerate(rows) for _ in fed]
    bounds = [sum(len(fed) for fed, _ in rows[:r]) for r in range(len(rows) + 1)]
    width = max(len(p) for p in pages)
    table = torch.tensor([p + [0] * (width - len(p)) for p in pages], dtype=torch.int32)
    writes = [pages[r][p // page_size] * page_size + p % page_size for r, p in zip(owners, positions, strict=True)]
    return Batch(
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        rows=torch.tensor(owners),
        offsets=torch.tensor(bounds),
        page_table=table,
        starts=torch.zeros(len(rows), dtype=torch.int64),
        gaps=torch.zeros((len(rows), 2), dtype=torch.int64),
        writes=torch.tensor(writes),
        wanted=torch.arange(len(ids)),
    )


def scattered_pages(lengths: Sequence[int], page_size: int) -> tuple[list[list[int]], int]:
    """Pages for sequences of these lengths, dealt in turn so that no sequence's pages adjoin; and how many exist."""
    need = [-(-length // page_size) for length in lengths]
    pages: list[list[int]] = [[] for _ in lengths]
    following = 1  # page 0 is scratch
    for column in reversed(range(max(need))):
        for r, n in enumerate(need):
            if column < n:
                pages[r].insert(0, following)
                following += 1
    return pages, following


@torch.inference_mode()
def paged_logits(
    model: Transformer, sequences: Sequence[list[int]], page_size: int = 4, chunk: int = 1 << 20
) -> list[Tensor]:
    """Logits [len, V] of each sequence, fed together, `chunk` tokens of each per forward."""
    pages, n_pages = scattered_pages([len(s) for s in sequences], page_size)
    kv = PagedKV.allocate(model.config, n_pages, page_size, model.dtype)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for start in range(0, max(map(len, sequences)), chunk):
        fed = [(s[start : start + chunk], start) for s in sequences]
        batch = make_batch(fed, pages, page_size)
        hidden = model.forward(batch, ReferenceAttention(kv, batch, model.config))
        for part, piece in zip(parts, model.logits(hidden.final).split([len(ids) for ids, _ in fed]), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]
