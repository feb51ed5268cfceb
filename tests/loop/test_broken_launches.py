"""Launches that fail midway, in place of anything that torch does in them: what is half done harms nobody's text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from overdrive.draft.small import SmallModelChoice
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import Finish, FinishReason, GrammarSpec, SamplingParams
from tests.draft.checked import checked, head
from tests.draft.schedules import Seen, alike_requests
from tests.draft.watched import watched
from tests.grammar.words import EOS

from .bench import Bench, RandomDrafts, StopAndGo
from .breaking import BreakingStream, now_and_then
from .constrained import make_request, mixed_requests, oracle
from .lazy import LazyStream
from .padded_engine import choices, padded_bench
from .test_engine_laws import random_bounds
from .tiny_drafters import DRAFTERS
from .tiny_engine import tiny, tiny_bench

MEMORY = (torch.OutOfMemoryError, MemoryError)
EITHER = (*MEMORY, RuntimeError)

OpenBench = Callable[[random.Random, BreakingStream], Bench]


def cpu(rng: random.Random, stream: BreakingStream) -> Bench:
    drafter = rng.choice(list(DRAFTERS.values()))
    return tiny_bench(stream, rng.choice([RandomDrafts, StopAndGo])(rng), drafter, **random_bounds(rng))


def cuda(rng: random.Random, stream: BreakingStream) -> Bench:
    """That of a GPU, in torch."""
    drafter = rng.choice(list(choices().values()))
    return padded_bench(stream, rng.choice([RandomDrafts, StopAndGo])(rng), drafter, **random_bounds(rng))


def run(b: Bench, requests: Sequence[Request]) -> None:
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    b.check_conserved()


def count_lost(b: Bench, requests: Sequence[Request]) -> int:
    """Who was alone with a fault has an error and a part of its text, all others have all of theirs."""
    lost = 0
    for request in requests:
        expected, finish = oracle(request.prompt, request.params)
        (found,), answer = b.finishes[request.id], b.answers[request.id]
        if found.reason is FinishReason.ERROR:
            assert found.message == "the device failed: broken" and answer == expected[: len(answer)]
            lost += 1
            continue
        assert (answer, found) == (expected, finish), request
        scored = request.params.prompt_logprobs >= 0
        assert len(b.prompt_scores.get(request.id, ())) == (len(request.prompt) - 1 if scored else 0)
    assert lost <= b.loop.faults
    return lost


def broken_engine(open_bench: OpenBench, kinds: Sequence[type[Exception]], seed: int) -> tuple[int, int]:
    """How often it failed, and how many requests it lost."""
    rng = random.Random(seed)
    b = open_bench(rng, BreakingStream(rng, now_and_then(rng, kinds, usual=1500, most=3)))
    requests = mixed_requests(rng, rng.randint(3, 7), share=0.4)
    run(b, requests)
    return b.loop.faults, count_lost(b, requests)


@pytest.mark.parametrize("kinds", [MEMORY, EITHER])
@pytest.mark.parametrize("open_bench", [cpu, cuda])
def test_what_a_failed_launch_has_half_done_is_in_nobodys_text(
    open_bench: OpenBench, kinds: Sequence[type[Exception]]
) -> None:
    """Random engines, free and constrained requests. Where memory was what lacked, the prefix cache is kept."""
    found = [broken_engine(open_bench, kinds, seed) for seed in range(5)]
    assert sum(faults for faults, _ in found) > 5
    assert sum(lost for _, lost in found) < 10


@pytest.mark.parametrize("network", ["head", "model"])
def test_what_a_failed_launch_has_half_done_is_in_nobodys_drafts(network: str) -> None:
    """Every proposal is compared with one from the whole text, by the drafters themselves."""
    for seed in range(2):
        rng = random.Random(seed)
        stream = BreakingStream(rng, now_and_then(rng, MEMORY, usual=2000, most=3))
        make = (lambda room: checked(room, head(), 24)) if network == "head" else watched(Seen())
        b = tiny_bench(stream, StopAndGo(rng, 8), make, **random_bounds(rng) | {"cached": True, "n_pages": 40})
        run(b, alike_requests(rng, 6))
        assert b.loop.faults


@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_target_as_its_own_drafter_is_right_after_any_fault(lookahead: int) -> None:
    """In the static tensors of a GPU's engine, where marks of pages and bounds of lags outlive a fault.

    Drafts beyond an answer's end are nobody's; where steps overlap, the last one may have some.
    """
    for seed in range(3):
        rng = random.Random(seed)
        stream = BreakingStream(rng, now_and_then(rng, MEMORY, usual=2500, most=3))
        choice = SmallModelChoice(tiny(), "tiny")
        b = padded_bench(stream, StopAndGo(rng, 8), choice, lookahead=lookahead, n_pages=60, page_size=4)
        requests = [
            Request(request.id, request.prompt, SamplingParams(max_tokens=20, temperature=0.8, seed=seed), number)
            for number, request in enumerate(alike_requests(rng, 8))
        ]
        run(b, requests)
        assert b.loop.faults and sum(request.offered for request in requests) > 20
        assert all(request.offered - request.drafted <= 7 * lookahead for request in requests)


def test_masks_that_came_with_a_failed_launch_are_nobodys() -> None:
    """The request they were for is gone when it runs again; its row is that of one whose draws look at masks too."""
    held = SamplingParams(max_tokens=20, grammar=GrammarSpec("regex", "(ab)+"), stop_token_ids=(EOS,))
    free = SamplingParams(max_tokens=20, temperature=0.0, frequency_penalty=0.5)
    b = padded_bench(LazyStream(random.Random(0)), FixedDrafts(3), choices()["ngram"])
    first, second = make_request("held", (1, 2, 3), held, 0), make_request("free", (4, 5, 6), free, 1)
    for request in (first, second):
        b.scheduler.submit(request)
    aside, failed = b.runner._aside, []

    def fail_once(work: Callable[[], None]) -> None:
        aside(work)
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("broken")

    b.runner._aside = fail_once
    while not b.loop.faults:
        b.advance()
    b.take(b.committer.abort(first, Finish(FinishReason.ABORT)))
    b.run()
    assert (b.answers["free"], *b.finishes["free"]) == oracle(second.prompt, free)
