"""The simulator itself: cases that can be added up by hand, and what every run keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overdrive.policy.controller import Controller, FixedDrafts, LoadView
from overdrive.policy.simulation.engine import World, play
from overdrive.policy.simulation.luck import accepted, uniform
from overdrive.policy.simulation.record import Run
from overdrive.types import MAX_DRAFTS, Outcome, Plan, Step, Why

from .worlds import ALWAYS, NEVER, PLAIN, by_hand, clients, recorded, world


class Watcher(Controller):
    """Any Ks in turn; keeps what it was told."""

    def __init__(self, drafts: Sequence[int]) -> None:
        self._drafts = tuple(drafts)
        self.views: list[LoadView] = []
        self.settled: list[tuple[int, Step, Outcome]] = []  # (plans asked for before, ..)

    @property
    def plans(self) -> Sequence[int]:
        return tuple(range(1, MAX_DRAFTS + 1))

    def choose(self, view: LoadView) -> Plan:
        self.views.append(view)
        return Plan(self._drafts[len(self.views) % len(self._drafts)], Why(rule="watched"))

    def observe(self, step: Step, outcome: Outcome) -> None:
        self.settled.append((len(self.views), step, outcome))


def watch(where: World, *drafts: int) -> tuple[Watcher, Run]:
    watcher = Watcher(drafts)
    return watcher, play(where, lambda truth: watcher)


def test_one_plain_request_takes_as_long_as_its_steps() -> None:
    """A prompt of 4 in one step (10 + 2 s), whose last position yields the first token; then 3 steps of 10 + 1 s."""
    run = play(by_hand(recorded((5.0, 4, 4)), NEVER), lambda truth: FixedDrafts(0))
    assert run.seconds == [12, 11, 11, 11]
    assert run.tokens == [1, 1, 1, 1]
    assert (run.arrivals, run.firsts, run.ends) == ([5], [17], [50])
    assert run.throughput == pytest.approx(4 / 45)
    assert run.token_seconds.tolist() == [11]
    assert run.first_seconds.tolist() == [12]


def test_right_drafts_end_a_request_sooner_and_cost_their_passes() -> None:
    """The prompt's step, then one of 3 drafts: 10 + 2 s for 4 tokens, and 3 x 0.5 s to draft them."""
    run = play(by_hand(recorded((0.0, 4, 5)), ALWAYS), lambda truth: FixedDrafts(3))
    assert run.seconds == [12, 13.5]
    assert run.tokens == [1, 4]


def test_wrong_drafts_cost_and_yield_nothing() -> None:
    """No row drafts beyond its end: with 3 tokens left it drafts 2, then 1, then none."""
    run = play(by_hand(recorded((0.0, 4, 4)), NEVER), lambda truth: FixedDrafts(3))
    assert run.seconds == [12, 10 + 2 + 1, 10 + 1 + 0.5, 11]
    assert run.tokens == [1, 1, 1, 1]


def test_a_long_prompt_is_fed_in_chunks_beside_decoding_rows() -> None:
    """Chunks of 4 beside one row: 5 tokens pay for 8. The second request's 8 tokens of prompt take two steps."""
    run = play(by_hand(recorded((0.0, 4, 5), (1.0, 8, 1)), NEVER), lambda truth: FixedDrafts(0))
    assert run.seconds[:4] == [12, 11, 14, 14]
    assert run.tokens[:4] == [1, 1, 1, 2]


def test_outcomes_reach_the_controller_one_step_late() -> None:
    """When step n is planned, steps up to n - 2 have been observed."""
    watcher, _ = watch(by_hand(recorded((0.0, 4, 30)), NEVER), 0)
    settled = [(asked, step.number) for asked, step, _ in watcher.settled]
    assert settled[:28] == [(number + 1, number) for number in range(1, 29)]


def test_a_row_that_has_ended_is_fed_once_more_at_most() -> None:
    """Its end is known one step late; those tokens are nobody's."""
    watcher, run = watch(by_hand(recorded((0.0, 4, 6), (0.0, 4, 30)), ALWAYS), 2)
    fed = 0
    for _, step, outcome in watcher.settled:
        fed += sum(int(n) for row, n in zip(step.rows, outcome.counts, strict=True) if row.request_id == "r0")
    assert 6 <= fed <= 6 + 3
    assert run.lengths[0] == 6


@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(st.tuples(st.floats(0, 200), st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8),
    drafts=st.lists(st.integers(0, MAX_DRAFTS), min_size=1, max_size=5),
    share=st.sampled_from([NEVER, ALWAYS]),
)
def test_tokens_are_conserved(requests, drafts, share) -> None:
    """Whatever is planned, every request gets exactly its tokens, no earlier than it came, and time adds up."""
    where = by_hand(recorded(*sorted(requests)), share)
    watcher, run = watch(where, *drafts)
    assert sum(run.tokens) == where.load.work
    assert run.lengths == [output for _, _, output in sorted(requests)]
    assert all(a < f <= e for a, f, e in zip(run.arrivals, run.firsts, run.ends, strict=True))
    assert max(run.ends) >= sum(run.seconds)
    for _, step, outcome in watcher.settled:
        assert step.tokens <= PLAIN.max_step_tokens
        assert len(step.rows) == len({row.slot for row in step.rows}) <= PLAIN.max_rows
        assert (outcome.counts <= outcome.offered + 1).all()


def test_a_view_counts_what_the_scheduler_would() -> None:
    watcher, _ = watch(by_hand(recorded((0.0, 4, 4), (0.0, 4, 9)), NEVER), 0)
    assert (watcher.views[0].decode_rows, watcher.views[0].prefill_tokens) == (0, 8)
    view = watcher.views[1]
    assert (view.decode_rows, view.prefill_tokens, view.sampled_rows) == (2, 0, 0)
    assert view.context_tokens == 2 * (4 + 1)  # the token that the prompts' step will yield
    assert view.caps[2] == 1 and view.caps[7] == 1  # of 4 and 9 tokens one is on its way, one is the step's own
    assert sum(view.caps) == view.decode_rows


def test_admissions_come_with_the_step_that_first_holds_them() -> None:
    watcher, run = watch(world("cpu-smollm2", "steady:8", "mixed", steps=200), 0, 3)
    known: dict[int, str] = {}
    for _, step, _ in watcher.settled:
        known.update({admission.slot: admission.request_id for admission in step.admissions})
        assert all(known[row.slot] == row.request_id for row in step.rows)
    sampled = [a.params.temperature > 0 for _, step, _ in watcher.settled for a in step.admissions]
    assert 0.2 < np.mean(sampled) < 0.8
    assert max(run.drafts) == 3


def test_clients_come_and_go_with_the_work() -> None:
    """Two clients, then one, then two: as many rows as clients, but for answers that are being heard out."""
    _, run = watch(by_hand(clients(((2, 60), (1, 60), (2, 60)), 1, 5), NEVER), 0)
    rows, done = np.array(run.decode_rows), np.array(run.done)
    assert rows.max() == 2
    assert rows[(done > 0.45) & (done < 0.65)].max() == 1
    assert rows[done < 0.3].mean() > 1.3 and rows[done > 0.8].mean() > 1.3


def test_chance_does_not_depend_on_decisions() -> None:
    """Whether a token is guessed right depends on request and position alone: runs differ by plans only."""
    where = world("dense-8b", "steady:4", steps=200, noise=0.0)
    assert play(where, lambda truth: FixedDrafts(2)).tokens == play(where, lambda truth: FixedDrafts(2)).tokens
    rates, at = np.full((1, 7), 0.6), np.array([17])
    right = uniform(0, 17, np.arange(3, 10)) < 0.6
    for k in range(8):
        expected = int(np.cumprod(right[:k]).sum())
        assert accepted(0, at, np.array([3]), np.array([k]), rates).tolist() == [expected]


def test_acceptance_comes_out_as_it_was_put_in() -> None:
    n = 40_000
    rates = np.tile([0.8, 0.5, 0.9], (n, 1))
    counts = accepted(1, np.arange(n), np.arange(n) % 97, np.full(n, 3), rates)
    shares = [(counts > j).mean() for j in range(3)]
    assert shares == pytest.approx([0.8, 0.4, 0.36], abs=0.01)
    assert uniform(1, np.arange(n), 5).mean() == pytest.approx(0.5, abs=0.01)
