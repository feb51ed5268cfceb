"""Constrained answers: whatever the engine does, they are those of one token at a time, and what is whole is valid."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import pytest

from overdrive.device.stream import InlineStream
from overdrive.grammar.base import GrammarFault
from overdrive.grammar.constraint import Constrained
from overdrive.grammar.guidance import GuidanceMatcher
from overdrive.grammar.walker import Walker
from overdrive.policy.acceptance import KEYS
from overdrive.policy.controller import FixedDrafts
from overdrive.types import GrammarSpec, SamplingParams
from tests.grammar.words import EOS

from .bench import RandomDrafts, StopAndGo
from .constrained import check, make_request, mixed_requests
from .crew import Crew, divided_bench, padded_divided_bench
from .lazy import LazyStream
from .padded_engine import choices, padded_bench
from .test_engine_laws import random_bounds, wild
from .tiny_drafters import DRAFTERS, ngram
from .tiny_engine import tiny_bench


@pytest.mark.parametrize("block", range(6))
def test_constrained_text_does_not_depend_on_anything_the_engine_decides(block: int) -> None:
    """Random K, drafters, pages, chunks, mates, lookahead, preemption, lateness, markers, all sampling rules."""
    whole = 0
    for seed in range(block * 6, block * 6 + 6):
        rng = random.Random(seed)
        b = tiny_bench(
            LazyStream(rng),
            rng.choice([RandomDrafts, StopAndGo])(rng),
            rng.choice([*DRAFTERS.values(), wild(rng)]),
            **random_bounds(rng),
        )
        requests = mixed_requests(rng, rng.randint(2, 7))
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        whole += check(b, requests)
    assert whole


@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_constrained_text_does_not_depend_on_k(drafts: int, drafter: str) -> None:
    rng = random.Random(5)
    b = tiny_bench(InlineStream(), FixedDrafts(drafts), DRAFTERS[drafter], lookahead=0)
    requests = mixed_requests(rng, 8)
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    check(b, requests)


@pytest.mark.parametrize("block", range(6))
def test_constrained_text_is_the_same_in_padded_steps(block: int) -> None:
    """The CUDA runner's masks: static tensors, rings, copies that may come late."""
    whole = 0
    for seed in range(100 + block * 5, 100 + block * 5 + 5):
        rng = random.Random(seed)
        b = padded_bench(
            LazyStream(rng),
            rng.choice([RandomDrafts, StopAndGo])(rng),
            rng.choice(list(choices().values())),
            **random_bounds(rng),
        )
        requests = mixed_requests(rng, rng.randint(2, 7), share=rng.choice([0.4, 0.8]))
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        whole += check(b, requests)
    assert whole


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("padded", [False, True])
def test_constrained_text_does_not_depend_on_ranks(seed: int, padded: bool) -> None:
    """The leader alone has masks: the others run the same launches without."""
    rng = random.Random(seed)
    with Crew(2) as crew:
        make, drafters = (padded_divided_bench, choices()) if padded else (divided_bench, DRAFTERS)
        drafter = rng.choice(list(drafters.values()))
        b = make(crew, LazyStream(rng), RandomDrafts(rng), drafter, **random_bounds(rng))
        requests = mixed_requests(rng, rng.randint(3, 6), share=0.6)
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        check(b, requests)


SPELLED = GrammarSpec("choice", '["the name ab, no 12: false", "abcabc true null"]')


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("padded", [False, True])
def test_what_is_certain_is_drafted(lookahead: int, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its first words an answer has no choice left. Nobody else drafts here that knows it."""
    monkeypatch.setattr("overdrive.grammar.walker.PATIENCE", inf)  # else fewer are accepted where masks come late
    make = (lambda *given, **bounds: padded_bench(*given, choices()["ngram"], **bounds)) if padded else _with_ngram
    b = make(InlineStream(), FixedDrafts(5), lookahead=lookahead)
    params = SamplingParams(max_tokens=40, temperature=1.0, grammar=SPELLED, stop_token_ids=(EOS,))
    requests = [make_request(f"r{i}", (i, 2, 3), params, i) for i in range(3)]
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    source = b.runner.sources.index("grammar")
    right = sum(b.committer._counts.accepted[source].sum(axis=0))
    assert right == b.committer._counts.offered[source].sum()  # what is certain is certain
    assert right > 9


def _with_ngram(stream, controller, **bounds):
    return tiny_bench(stream, controller, ngram, **bounds)


def walks_are_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GuidanceMatcher, "rollback", lambda self, count: None)


def masks_are_a_step_old(patch: pytest.MonkeyPatch) -> None:
    """As if the step before were not settled when they are written."""
    accept, late_tokens = Constrained.accept, {}

    def late(self: Constrained, token: int) -> None:
        waiting = late_tokens.setdefault(id(self), [])
        if waiting:
            accept(self, waiting.pop())
        waiting.append(token)

    patch.setattr(Constrained, "accept", late)


def masks_of_drafts_are_one_off(patch: pytest.MonkeyPatch) -> None:
    fill = Walker.fill

    def off(self: Walker, chains, sheet, drafting: bool) -> None:
        fill(self, chains, sheet, drafting)
        sheet.index[:, 1:] = sheet.index[:, :-1].copy()

    patch.setattr(Walker, "fill", off)


@pytest.mark.parametrize("mutant", [walks_are_not_taken_back, masks_are_a_step_old, masks_of_drafts_are_one_off])
def test_the_laws_notice(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, GrammarFault)):
        test_constrained_text_does_not_depend_on_anything_the_engine_decides(0)


def test_drafts_of_constrained_rows_are_counted_apart() -> None:
    for name, grammar in (("greedy", None), ("greedy_constrained", GrammarSpec("regex", "(ab|abc|no){9,}"))):
        b = tiny_bench(InlineStream(), FixedDrafts(3), ngram, lookahead=0)
        params = SamplingParams(max_tokens=12, temperature=0.0, grammar=grammar)
        b.scheduler.submit(make_request("a", (1, 2, 1, 2), params, 0))
        b.run()
        rounds = b.committer._counts.rounds.sum(axis=0)
        assert rounds[KEYS.index(name)] == rounds.sum() > 0
