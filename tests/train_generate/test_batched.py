"""Laws of the batched generator, on the tiny model: its answers are those of one prompt at a time."""

from __future__ import annotations

import random

import pytest
import torch

from overdrive.model.dummy import tiny_config, tiny_transformer
from overdrive.train.generate import batched
from overdrive.train.generate.attention import FlashDecode, MaskedDecode, SlotCache
from overdrive.train.generate.batched import BatchedGenerator, groups
from overdrive.train.generate.jobs import Job
from tests.train_generate.feeds import ListFeed, greedy_reference

STOPS = (1, 7, 23)


def ragged_jobs(count: int, seed: int = 0, **changes) -> list[Job]:
    draw = random.Random(seed)
    return [
        Job(
            key=key,
            prompt=[draw.randrange(64) for _ in range(draw.choice([1, 2, 3, 17, 33, 34, 60]))],
            max_tokens=draw.choice([1, 2, 9, 40]),
            **changes,
        )
        for key in range(count)
    ]


def run(model, jobs, slots: int, stride: int, **kwargs) -> dict[int, list[int]]:
    feed = ListFeed(jobs)
    BatchedGenerator(model, STOPS, slots=slots, max_len=100, stride=stride, **kwargs).run(feed)
    return feed.answers


@pytest.mark.parametrize(("slots", "stride"), [(1, 1), (3, 4), (16, 5)])
def test_greedy_answers_are_those_of_one_prompt_at_a_time(slots, stride):
    model, jobs = tiny_transformer(), ragged_jobs(14)
    answers = run(model, jobs, slots, stride)
    assert answers == {job.key: greedy_reference(model, job, STOPS) for job in jobs}
    ends = {answer[-1] in STOPS for answer in answers.values()}
    assert ends == {True, False}  # both ways to end were seen


def test_greedy_answers_hold_for_windows_and_biases():
    changes = {"windows": (5, 0), "qkv_bias": True, "qk_norm": True, "kv_heads": 1}
    model, jobs = tiny_transformer(**changes), ragged_jobs(8, seed=1)
    assert run(model, jobs, 3, 4) == {job.key: greedy_reference(model, job, STOPS) for job in jobs}


def test_what_a_slot_held_before_never_counts(monkeypatch):
    allocate = SlotCache.allocate

    def poisoned(*args):
        cache = allocate(*args)
        cache.keys.fill_(30.0)
        cache.values.fill_(1e6)
        return cache

    model, jobs = tiny_transformer(), ragged_jobs(9, seed=2)
    clean = run(model, jobs, 2, 3)
    monkeypatch.setattr(SlotCache, "allocate", poisoned)
    assert run(model, jobs, 2, 3) == clean


def test_prompts_prefilled_in_several_groups_answer_the_same(monkeypatch):
    model, jobs = tiny_transformer(), ragged_jobs(12, seed=3)
    together = run(model, jobs, 12, 4)
    monkeypatch.setattr(batched, "_GROUP_TOKENS", 64)
    assert run(model, jobs, 12, 4) == together


def test_jobs_asked_for_by_an_answer_are_answered():
    def follow(key: int, answer: list[int]) -> Job | None:
        return Job(key=key + 1, prompt=answer, max_tokens=5) if key < 6 else None

    feed = ListFeed([Job(key=0, prompt=[3, 4], max_tokens=4)], follow)
    BatchedGenerator(tiny_transformer(), STOPS, slots=4, max_len=64, stride=2).run(feed)
    assert sorted(feed.answers) == list(range(7))


def test_greedy_rows_do_not_depend_on_sampled_neighbours():
    model = tiny_transformer()
    greedy = ragged_jobs(8, seed=4)
    sampled = [Job(key=100 + n, prompt=[n, 5], max_tokens=30, temperature=1.5, top_p=0.9) for n in range(8)]
    mixed = [job for pair in zip(greedy, sampled, strict=True) for job in pair]
    answers = run(model, mixed, 5, 3)
    assert {job.key: answers[job.key] for job in greedy} == run(model, greedy, 5, 3)


def test_a_seed_gives_the_same_samples_and_another_seed_others():
    model, jobs = tiny_transformer(), ragged_jobs(8, seed=5, temperature=1.0)
    assert run(model, jobs, 4, 4, seed=1) == run(model, jobs, 4, 4, seed=1) != run(model, jobs, 4, 4, seed=2)


def test_a_job_that_does_not_fit_is_refused():
    for job in (Job(key=0, prompt=[1] * 90, max_tokens=11), Job(key=0, prompt=[], max_tokens=1)):
        with pytest.raises(ValueError, match="do not fit into 100"):
            run(tiny_transformer(), [job], 2, 2)


def test_groups_hold_every_prompt_once_within_their_length():
    placed = list(enumerate(ragged_jobs(50, seed=6)))
    found = list(groups(placed))
    assert sorted(slot for group, _ in found for slot, _ in group) == [s for s, job in placed if len(job.prompt) > 1]
    assert all(len(job.prompt) - 1 <= padded and padded % 32 == 0 for group, padded in found for _, job in group)


@pytest.mark.cuda
def test_flash_decode_gives_the_values_of_the_masked_reference():
    device, dtype = torch.device("cuda"), torch.bfloat16
    config = tiny_config(heads=9, kv_heads=3, head_dim=64, windows=(0, 50))
    cache = SlotCache.allocate(config, 7, 512, dtype, device)
    cache.keys.normal_()
    cache.values.normal_()
    lengths = torch.tensor([1, 2, 128, 129, 400, 511, 512], dtype=torch.int32, device=device)
    places = torch.arange(7, device=device) * 512 + lengths - 1
    q, k, v = (torch.randn((7, heads, 64), dtype=dtype, device=device) for heads in (9, 3, 3))
    for layer in (0, 1):
        wanted = MaskedDecode(cache, config, places, lengths, 512)(layer, q, k, v)
        found = FlashDecode(cache, config, places, lengths, 512)(layer, q, k, v)
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)


@pytest.mark.cuda
def test_graphs_give_the_answers_of_single_steps():
    from overdrive.model.assemble import Form, assemble, dense_factory
    from overdrive.model.dummy import RandomCheckpoint
    from overdrive.model.ops import TorchOps

    device, config = torch.device("cuda"), tiny_config()
    dense = dense_factory(torch.float32, device)
    form = Form(torch.float32, device, dense, TorchOps(torch.float32, device), dense)
    model = assemble(config, RandomCheckpoint(config, 0), form, 512, lambda *_: None)
    jobs = ragged_jobs(40)
    assert run(model, jobs, 7, 4) == run(tiny_transformer(torch.float32), jobs, 7, 4)
