"""What a head learns from a batch, and what it would have drafted: the unrolled steps against the target's words.

At step i the token at place p is predicted from index p - 2 - i, and the target's distribution of it stands at p - 1
for every step: it is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.train.batches import Lesson
from overdrive.train.head import Head
from overdrive.train.loss import Kernel, scores, slice_loss, soft_cross_entropy
from overdrive.train.target import Teacher


def unrolled_loss(
    head: Head, teacher: Teacher, lesson: Lesson, *, steps: int, hard: float = 0.0, kernel: Kernel = slice_loss
) -> Tensor:
    """Mean over steps of the mean soft cross-entropy, a scalar on the device.

    Places whose likeliest token is outside the draft vocabulary are left out: what stands there cannot be drafted.
    hard: weight of the likeliest token beside the target's distribution, of weight 1.
    """
    taps, final = teacher.features(lesson.ids, head.config.taps)
    said = teacher.distribution(final.index_select(0, lesson.places - 1), head.draft_ids)
    counted = said.drafted >= 0
    target = said.shares
    if hard:
        target = target.mul_(1 / (1 + hard))
        likeliest = said.drafted.clamp(min=0)[:, None]
        target.scatter_add_(1, likeliest, torch.full_like(likeliest, hard / (1 + hard), dtype=target.dtype))
    within = lesson.places % lesson.ids.shape[1]
    exact = head.weights["lm_head.weight"].dtype
    share = 1 / (counted.sum().clamp(min=1) * steps)
    total = torch.zeros((), dtype=exact, device=lesson.ids.device)
    for i, outputs in enumerate(_outputs(head, teacher, lesson, taps, steps)):
        scale = (counted & (within >= 2 + i)).to(exact) * share
        rows = outputs.flatten(0, 1).index_select(0, _sources(lesson, i))
        total = total + soft_cross_entropy(rows, head.weights["lm_head.weight"], target, scale, kernel)
    return total


@torch.no_grad()
def leading_right(head: Head, teacher: Teacher, lesson: Lesson, steps: int) -> Tensor:
    """How many drafts of a chain from each index equal the text before the first that does not: [B, S] int64.

    Drafts behind the end of an answer count as wrong. At most `steps`.
    """
    taps, _ = teacher.features(lesson.ids, head.config.taps)
    text = lesson.ids.flatten().index_select(0, lesson.places)
    within = lesson.places % lesson.ids.shape[1]
    lm_head = head.weights["lm_head.weight"].to(head.dtype)
    standing = torch.ones(lesson.ids.numel(), dtype=torch.bool, device=lesson.ids.device)
    lead = torch.zeros(lesson.ids.numel(), dtype=torch.int64, device=lesson.ids.device)
    for i, outputs in enumerate(_outputs(head, teacher, lesson, taps, steps)):
        sources = _sources(lesson, i)
        rows = outputs.flatten(0, 1).index_select(0, sources)
        drafted = torch.cat([scores(part, lm_head).argmax(-1) for part in rows.split(8192)])
        right = (head.draft_ids[drafted] == text) & (within >= 2 + i)
        standing = standing & (torch.zeros_like(lead).index_add_(0, sources, right.long()) > 0)
        lead += standing
    return lead.view_as(lesson.ids)


def _outputs(head: Head, teacher: Teacher, lesson: Lesson, taps: Tensor, steps: int) -> Iterator[Tensor]:
    embedded = F.embedding(lesson.ids, teacher.embedding)
    return head.unroll(embedded.to(head.dtype), taps.to(head.dtype), steps)


def _sources(lesson: Lesson, step: int) -> Tensor:
    """The index that predicts each place at this step, in the flattened batch; 0 where it would lie before it."""
    return (lesson.places - 2 - step).clamp(min=0)
