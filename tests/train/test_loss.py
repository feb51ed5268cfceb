"""The fused loss beside the plain one, and the masks that decide what counts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from overdrive.train import loss
from overdrive.train.batches import make_lesson
from overdrive.train.loss import slice_loss, soft_cross_entropy
from overdrive.train.objective import unrolled_loss

from .tiny import CPU, chosen, tiny_head, tiny_teacher, write_answers


@pytest.mark.parametrize("rows", [3, 8192])
def test_the_fused_loss_and_its_gradients_are_those_of_plain_cross_entropy(monkeypatch, rows):
    monkeypatch.setattr(loss, "ROWS", rows)
    generator = torch.Generator().manual_seed(0)
    hidden, weight, target = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((10, 6), (20, 6), (10, 20))
    )
    target, scale = target.softmax(-1), torch.arange(10, dtype=torch.float64) / 7
    leaves = [(hidden.clone().requires_grad_(), weight.clone().requires_grad_()) for _ in range(2)]
    plain = (F.cross_entropy(leaves[0][0] @ leaves[0][1].T, target, reduction="none") * scale).sum()
    fused = soft_cross_entropy(*leaves[1], target, scale, slice_loss)
    (3 * plain).backward()
    (3 * fused).backward()
    torch.testing.assert_close(fused, plain)
    for one, other in zip(*leaves, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("hard", [0.0, 0.5])
def test_every_step_learns_the_targets_words_that_it_can_draft(tmp_path, hard):
    """The whole objective, written once more: place by place, with the full softmax of the target."""
    teacher = tiny_teacher()
    dataset = write_answers(tmp_path, teacher, 4)
    head, steps = tiny_head(teacher, chosen(dataset, 8), scale=4.0), 5
    lesson = make_lesson(dataset, dataset.split("train")[:3], 64, CPU)
    found = unrolled_loss(head, teacher, lesson, steps=steps, hard=hard).detach()

    taps, final = teacher.features(lesson.ids, head.config.taps)
    logits = (final @ teacher.head.T).view(*lesson.ids.shape, -1)
    outputs = [o.detach() for o in head.unroll(F.embedding(lesson.ids, teacher.embedding), taps, steps)]
    total, counted = 0.0, set()
    for row, conversation in enumerate(lesson.conversations):
        answer = dataset.conversation(conversation)[1]
        for place in (p for p in range(len(answer)) if answer[p]):
            best = int(logits[row, place - 1].argmax())
            if best not in head.draft_ids.tolist():
                continue
            counted.add((row, place))
            wanted = logits[row, place - 1][head.draft_ids].softmax(0)
            wanted = (wanted + hard * (head.draft_ids == best)) / (1 + hard)
            for i in range(steps):
                if place - 2 - i >= 0:
                    drafted = head.weights["lm_head.weight"].detach() @ outputs[i][row, place - 2 - i]
                    total -= float(wanted @ drafted.log_softmax(0))
    assert 0 < len(counted) < lesson.answers  # some words of the target are outside the vocabulary
    assert float(found) == pytest.approx(total / (len(counted) * steps), rel=1e-6)
