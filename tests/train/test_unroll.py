"""The unrolled steps equal a plain chain of drafts, computed pair by pair without any of the training code's tricks."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from overdrive.model.rope import frequencies
from overdrive.train.batches import make_lesson
from overdrive.train.head import Head
from overdrive.train.objective import leading_right
from overdrive.train.options import TrainOptions, resolve
from overdrive.train.trainer import Trainer
from overdrive.train.vocabulary import choose_draft_ids
from tests.draft.reference import Reference

from .tiny import CPU, tiny_head, tiny_teacher, write_answers

STEPS = 7
OPTIONS = [
    {},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"fc_norm": True},
    {"start_layer": 1},
]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turned(x: Tensor, position: int, head: Head) -> Tensor:
    """x [heads, D], one position."""
    angles = position * frequencies(head.config.rope, head.config.head_dim)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


class Chain:
    """A head that is fed one pair after another and keeps every key and value it made."""

    def __init__(self, head: Head, embedding: Tensor) -> None:
        self.head, self.embedding, self.keys, self.values = head, embedding, [], []
        self.weights = head.tensors()  # as a checkpoint has them

    def feed(self, had: Tensor, token: int, position: int) -> tuple[Tensor, Tensor]:
        """(feature or own output [H], next token) at a RoPE position -> what to feed back, and the normed output."""
        w, config = self.weights, self.head.config
        h = norm(had, w["layers.0.hidden_norm.weight"])
        u = torch.cat((norm(self.embedding[token], w["layers.0.input_layernorm.weight"]), h))
        q, k, v = (w[f"layers.0.self_attn.{n}_proj.weight"] @ u for n in "qkv")
        q, k = (turned(x.view(-1, config.head_dim), position, self.head) for x in (q, k))
        self.keys.append(k)
        self.values.append(v.view(-1, config.head_dim))
        out = []
        for index in range(config.heads):
            kv = index // (config.heads // config.kv_heads)
            scores = torch.stack([q[index] @ keys[kv] for keys in self.keys]) / math.sqrt(config.head_dim)
            out.append(scores.softmax(0) @ torch.stack([values[kv] for values in self.values]))
        r = (h if config.norm_before_residual else had) + w["layers.0.self_attn.o_proj.weight"] @ torch.cat(out)
        x = norm(r, w["layers.0.post_attention_layernorm.weight"])
        gate, up = w["layers.0.mlp.gate_proj.weight"] @ x, w["layers.0.mlp.up_proj.weight"] @ x
        a = r + w["layers.0.mlp.down_proj.weight"] @ (F.silu(gate) * up)
        normed = norm(a, w["norm.weight"])
        return (normed if config.norm_output else a), normed

    def fuse(self, taps: Tensor) -> Tensor:
        w = self.weights
        if self.head.config.fc_norm:
            taps = torch.cat([norm(part, w[f"fc_norm.{n}.weight"]) for n, part in enumerate(taps.chunk(3))])
        return w["fc.weight"] @ taps


@pytest.mark.parametrize("changes", OPTIONS, ids=lambda c: next(iter(c), "plain"))
@torch.no_grad()
def test_each_step_at_each_index_is_a_sequential_chain_of_drafts(changes):
    teacher = tiny_teacher()
    head = tiny_head(teacher, torch.arange(0, 64, 2), scale=8.0, **changes)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (2, 16), generator=generator)
    taps, _ = teacher.features(ids, head.config.taps)
    unrolled = list(head.unroll(F.embedding(ids, teacher.embedding), taps, STEPS))
    for row, text in enumerate(ids.tolist()):
        for t in range(len(text) - 1):
            chain = Chain(head, teacher.embedding)
            for index in range(t + 1):
                had, normed = chain.feed(chain.fuse(taps[row, index]), text[index + 1], index)
            for i in range(min(STEPS, len(text) - 1 - t)):
                if i:
                    had, normed = chain.feed(had, text[t + 1 + i], t + i)
                torch.testing.assert_close(unrolled[i][row, t], normed, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_padding_and_batch_mates_change_nothing():
    teacher = tiny_teacher()
    head = tiny_head(teacher, torch.arange(64), scale=8.0)
    ids = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(2))
    padded = F.pad(ids[:1, :11], (0, 5))

    def outputs(batch: Tensor) -> list[Tensor]:
        taps, _ = teacher.features(batch, head.config.taps)
        return list(head.unroll(F.embedding(batch, teacher.embedding), taps, STEPS))

    for i, (alone, together) in enumerate(zip(outputs(padded), outputs(ids), strict=True)):
        torch.testing.assert_close(alone[0, : 10 - i], together[0, : 10 - i], rtol=1e-9, atol=1e-9)


def test_more_steps_than_there_are_places_for_are_refused():
    teacher = tiny_teacher()
    head = tiny_head(teacher, torch.arange(64))
    ids = torch.zeros((1, 8), dtype=torch.int64)
    taps, _ = teacher.features(ids, head.config.taps)
    with pytest.raises(ValueError, match="at most 8 steps"):
        next(head.unroll(F.embedding(ids, teacher.embedding), taps, 9))


@torch.no_grad()
def test_a_head_that_starts_from_the_tapped_layer_computes_that_layer():
    teacher = tiny_teacher(layers=7)
    ids = torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(3))
    for changes in ({}, {"fc_norm": True}):
        head = tiny_head(teacher, torch.arange(64), start_layer=4, **changes)
        assert head.config.taps == (2, 3, 4)
        for name in "qkv":  # the embedding's half, which the layer has not
            head.weights[f"layers.0.self_attn.{name}_proj.weight"][:, :32] = 0
        taps, _ = teacher.features(ids, head.config.taps)
        after, _ = teacher.features(ids, (5,))
        outputs = next(head.unroll(F.embedding(ids, teacher.embedding), taps, 1))
        expected = norm(after, head.weights["norm.weight"])
        if changes:  # a norm per token changes what the layer adds in proportion to the residual
            assert F.cosine_similarity(outputs, expected, dim=-1).min() > 0.9
        else:
            torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_the_lead_at_each_index_is_what_a_drafter_gets_right_there(tmp_path):
    """The drafters' own reference, which knows nothing of unrolling, drafts freely from every index."""
    teacher = tiny_teacher()
    dataset = write_answers(tmp_path, teacher, 12)
    options = resolve(TrainOptions(epochs=8, steps=5, hard=4.0, learning_rate=1e-2, batch_tokens=256, max_len=64))
    head = tiny_head(teacher, choose_draft_ids(dataset, 40))
    with torch.enable_grad():
        list(Trainer(teacher, head, dataset, options).steps())
    lesson = make_lesson(dataset, np.arange(12), 64, CPU)
    leads = leading_right(head, teacher, lesson, STEPS)
    drafter = Reference(head.config, head.tensors(), teacher.embedding)
    found: Counter[int] = Counter()
    for row, conversation in enumerate(lesson.conversations):
        ids, answer = dataset.conversation(conversation)
        taps, _ = teacher.features(torch.tensor(ids[None].astype(np.int64)), head.config.taps)
        for t in range(int(answer.argmax()) - 1, len(ids) - 1):
            written, rest = drafter.draft(taps[0, : t + 1], ids[: t + 2].tolist(), STEPS).ids, ids[t + 2 :].tolist()
            lead = 0
            while lead < min(len(rest), STEPS) and written[lead] == rest[lead]:
                lead += 1
            assert leads[row, t] == lead
            found[lead] += 1
    assert len(found) > 4  # from nothing right to all of it
