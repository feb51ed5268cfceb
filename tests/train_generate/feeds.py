"""Feeds for the generator tests, and the slow reference: one answer at a time, no cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.model.transformer import Transformer
from overdrive.train.generate.jobs import Job
from tests.model.paged import make_batch


class ListFeed:
    """Jobs from a list; answers by key. `follow` may ask for one more job per answer."""

    def __init__(self, jobs: Sequence[Job], follow=lambda key, answer: None) -> None:
        self._jobs = list(jobs)
        self._follow = follow
        self.answers: dict[int, list[int]] = {}

    def take(self, most: int) -> list[Job]:
        taken, self._jobs = self._jobs[:most], self._jobs[most:]
        return taken

    def done(self, key: int, answer: list[int]) -> None:
        assert key not in self.answers
        self.answers[key] = answer
        if (job := self._follow(key, answer)) is not None:
            self._jobs.append(job)


@torch.inference_mode()
def greedy_reference(model: Transformer, job: Job, stops: Sequence[int]) -> list[int]:
    """The whole text fed anew for every token."""
    ids, answer = list(job.prompt), []
    while len(answer) < job.max_tokens and not (answer and answer[-1] in stops):
        pages = [list(range(1, 2 + len(ids) // 16))]
        kv = PagedKV.allocate(model.config, len(pages[0]) + 1, 16, model.dtype)
        batch = make_batch([(ids, 0)], pages, 16)
        hidden = model.forward(batch, ReferenceAttention(kv, batch, model.config)).final
        answer.append(int(model.logits(hidden[-1:]).argmax()))
        ids.append(answer[-1])
    return answer
