"""The gear box as controller: it changes K all the time here, and the text never depends on it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from overdrive.policy.controller import Controller, LoadView
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox
from overdrive.policy.lever import Lever
from overdrive.types import Outcome, Plan, Step, Why

from .lazy import LazyStream
from .padded_engine import choices, padded_bench
from .test_engine_laws import check, random_requests
from .tiny_drafters import DRAFTERS
from .tiny_engine import tiny_bench

KS = (1, 2, 3, 5, 7)


class RestlessGearbox(Gearbox):
    """A gear box in a world whose costs never stay as they are. drafts: the Ks it chose."""

    def __init__(self, rng: random.Random) -> None:
        steps = np.array([[1.0], [1.2], [1.3], [2.0]])
        drafts = np.array([[0.05 * k, 0.06 * k] for k in KS])
        costs = CostTable([1, 4, 16, 64], [0], steps, [1, 5], KS, drafts)
        super().__init__(costs, AcceptanceEstimator(("ngram", "other"), KS[-1]), KS)
        self._rng = rng
        self.drafts: set[int] = set()

    def choose(self, view: LoadView) -> Plan:
        plan = super().choose(view)
        self.drafts.add(plan.drafts)
        return plan

    def observe(self, step: Step, outcome: Outcome) -> None:
        a, b, c, d = (self._rng.choice([0.01, 1.0, 5.0]) for _ in range(4))
        super().observe(step, replace(outcome, seconds=(a, b, c, d)))
        for _ in range(20):
            self.costs.correct(self._rng.choice([1, 4, 16, 64]), 0, 0, 0, self._rng.choice([0.1, 10.0]))


@pytest.mark.parametrize("drafter", ["ngram", "eagle3", "ngram+eagle3"])
def test_text_does_not_depend_on_the_gear_box(drafter: str) -> None:
    chosen: set[int] = set()
    for seed in range(6):
        rng = random.Random(seed)
        gearbox = RestlessGearbox(rng)
        lookahead = rng.choice([0, 1])
        b = tiny_bench(LazyStream(rng), gearbox, DRAFTERS[drafter], n_pages=rng.choice([30, 120]), lookahead=lookahead)
        requests = random_requests(rng, 6)
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        check(b, requests)
        chosen |= gearbox.drafts
    assert len(chosen) > 2  # or the law was never put to the test


class ManyHands(Lever):
    """A lever that is moved before any step."""

    def __init__(self, own: Controller, rng: random.Random) -> None:
        super().__init__(own, "auto", KS[-1])
        self._rng = rng
        self.settings: set[str] = set()

    def choose(self, view: LoadView) -> Plan:
        if self._rng.random() < 0.3:
            self.shift(self._rng.choice(["auto", "off", "fixed:1", "fixed:4", "fixed:7"]))
        self.settings.add(self.setting)
        return super().choose(view)


@pytest.mark.parametrize("drafter", ["ngram", "ngram+eagle3"])
def test_text_does_not_depend_on_who_is_at_the_lever(drafter: str) -> None:
    settings: set[str] = set()
    for seed in range(4):
        rng = random.Random(seed)
        lever = ManyHands(RestlessGearbox(rng), rng)
        b = tiny_bench(LazyStream(rng), lever, DRAFTERS[drafter], lookahead=rng.choice([0, 1]))
        requests = random_requests(rng, 6)
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        check(b, requests)
        settings |= lever.settings
    assert len(settings) == 5


class FewRows(Controller):
    """Any K for any number of rows."""

    plans = KS

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, view: LoadView) -> Plan:
        return Plan(self._rng.choice((0, *KS)), Why(rule="few"), self._rng.choice((-1, 0, 1, 2)))


@pytest.mark.parametrize("drafter", ["eagle3", "ngram+eagle3"])
def test_text_does_not_depend_on_how_many_rows_draft(drafter: str) -> None:
    held = False
    for seed in range(4):
        rng = random.Random(seed)
        steps: list[Step] = []
        watch = [lambda turn, steps=steps: steps.append(turn.step)]
        b = tiny_bench(LazyStream(rng), FewRows(rng), DRAFTERS[drafter], watches=watch)
        requests = random_requests(rng, 6)
        for request in requests:
            b.scheduler.submit(request)
        b.run()
        check(b, requests)
        for step in steps:
            drafting = sum(row.drafts > 0 for row in step.rows)
            assert step.plan.most_rows < 0 or drafting <= step.plan.most_rows
            held |= 0 < drafting == step.plan.most_rows < len(step.rows)
    assert held


def test_padded_rows_that_draft_alone_have_the_text_of_all() -> None:
    rng = random.Random(11)
    b = padded_bench(LazyStream(rng), FewRows(rng), choices()["ngram+eagle3"])
    requests = random_requests(rng, 8)
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    check(b, requests)


def test_text_of_padded_steps_does_not_depend_on_the_gear_box() -> None:
    rng = random.Random(7)
    b = padded_bench(LazyStream(rng), RestlessGearbox(rng), choices()["ngram+eagle3"])
    requests = random_requests(rng, 8)
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    check(b, requests)
