"""Small models as drafters: what is drafted is what the model would say of the whole text, whatever was skipped."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from overdrive.device.attention.reference import PagedKV
from overdrive.draft import small
from overdrive.draft.marks import PageMarks
from overdrive.draft.small import SmallModelChoice, SmallModelDrafter
from overdrive.model.assemble import assemble
from overdrive.model.dummy import RandomCheckpoint, tiny_config, tiny_transformer
from overdrive.model.forms import cpu_form
from overdrive.model.transformer import Transformer
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.types import FinishReason, SamplingParams
from tests.loop.bench import StopAndGo
from tests.loop.lazy import LazyStream
from tests.loop.test_engine_laws import random_params
from tests.loop.tiny_engine import VOCAB, device, tiny, tiny_bench

from .schedules import OneRow, Seen, prompt_stream, random_schedule
from .watched import watched


def other_shape() -> Transformer:
    """Nothing but the vocabulary is the target's."""
    return tiny_transformer(torch.float64, vocab=VOCAB, seed=5, layers=1, hidden=24, heads=2, kv_heads=1, head_dim=12)


def test_drafts_are_those_of_the_whole_text() -> None:
    """K random with long stretches of 0, prefix hits, exchanged pages, preemption, chunks, lateness: equal drafts."""
    seen, preemptions, drafted = Seen(), 0, 0
    for seed in range(14):
        b, requests = random_schedule(random.Random(seed), watched(seen, other_shape() if seed % 4 == 3 else None))
        preemptions += b.scheduler.preemptions
        drafted += sum(request.drafted for request in requests)
        b.check_conserved()
    assert len(seen.lags) > 200
    assert max(seen.lags) > 30
    assert preemptions > 5
    assert drafted > 100


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("hot", [False, True])
def test_a_small_model_equal_to_the_target_is_always_right(drafts: int, hot: bool) -> None:
    """Whatever the sampling rules, penalties at draft positions included: every round yields K + 1 tokens."""
    seen, rng = Seen(), random.Random(drafts)
    b = tiny_bench(prompt_stream(), FixedDrafts(drafts), watched(seen, tiny()), lookahead=0, max_step_tokens=200)
    base = SamplingParams(max_tokens=1 + 5 * (drafts + 1), temperature=0.0)
    for i in range(6):
        params = replace(random_params(rng, 9), temperature=1.2, max_tokens=base.max_tokens) if hot else base
        params = replace(params, stop=(), stop_token_ids=(), max_drafts=-1, prompt_logprobs=-1)
        b.scheduler.submit(Request(f"r{i}", tuple(range(i // 2, i // 2 + 9)), params, i))
    b.run()
    counts = b.committer._counts
    assert counts.accepted.sum(axis=(0, 1)).tolist() == counts.reached.sum(axis=(0, 1)).tolist()
    assert counts.rounds.sum() * drafts == counts.accepted.sum()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_equal_drafts_are_right_on_the_cpus_kernels(temperature: float) -> None:
    """A token's result there does not depend on its batch, and both models' passes are recorded."""
    form = cpu_form("float32", device().team)
    model = assemble(tiny_config(), RandomCheckpoint(tiny_config(), 0), form, 200, lambda label, done, total: None)
    rng = random.Random(4)
    b = tiny_bench(prompt_stream(), StopAndGo(rng), SmallModelChoice(model, "equal").open, model=model)
    for i in range(6):
        params = SamplingParams(max_tokens=60, temperature=temperature, seed=i)
        b.scheduler.submit(Request(f"r{i}", tuple(range(i, i + 12)), params, i))
    b.run()
    counts = b.committer._counts
    assert counts.reached.sum() > 50
    assert counts.accepted.tolist() == counts.reached.tolist()
    assert [ends[0].reason for ends in b.finishes.values()] == [FinishReason.LENGTH] * 6


def test_equal_drafts_are_right_after_every_pause() -> None:
    seen, rng = Seen(), random.Random(3)
    b = tiny_bench(LazyStream(rng), StopAndGo(rng), watched(seen, tiny()), n_pages=30, chunk=5)
    requests = [Request(f"r{i}", tuple(range(i, i + 12)), SamplingParams(max_tokens=50, seed=i), i) for i in range(6)]
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    counts = b.committer._counts
    assert b.scheduler.preemptions > 0
    assert max(seen.lags) > 20
    assert counts.accepted.tolist() == counts.reached.tolist()


def test_without_drafts_the_model_is_fed_nothing() -> None:
    seen = Seen()
    OneRow(watched(seen), drafts=0).ask(range(20), 30)
    assert seen.fed == []


def test_accepted_drafts_are_read_once() -> None:
    """All right: the last draft was never fed, and the newest token follows it."""
    seen = Seen()
    OneRow(watched(seen, tiny()), drafts=3, chunk=16).ask(range(20), 13)
    assert seen.fed == [16, 4, 1, 1, 1, 2, 1, 1, 2, 1, 1]


def test_refused_drafts_cost_one_token_of_catching_up() -> None:
    seen = Seen()
    request = OneRow(watched(seen, other_shape()), drafts=2, chunk=32).ask(range(20), 20)
    assert request.drafted < 3
    assert seen.fed[0] == 20
    assert set(seen.fed[1:]) <= {1, 2}


def test_a_long_lag_is_read_in_passes_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "PASS_TOKENS", 16)
    seen = Seen()
    OneRow(watched(seen), drafts=2, chunk=64).ask(range(60), 6)
    assert seen.fed[:5] == [16, 16, 16, 12, 1]


def test_pages_once_read_are_not_read_again() -> None:
    seen = Seen()
    row = OneRow(watched(seen), drafts=3, page_size=4)
    row.ask(range(40), 2)
    seen.fed.clear()
    row.ask(range(40), 6)
    assert seen.fed[0] == 40 - 36, "all but the last page was shared"


def test_shared_pages_that_nobody_drafted_from_are_read_when_drafts_are_wanted() -> None:
    seen = Seen()
    row = OneRow(watched(seen), drafts=0, page_size=4)
    row.ask(range(40), 2)
    row.lever.drafts = 3
    row.ask(range(40), 6)
    assert seen.fed[0] == 40


def test_a_page_given_out_anew_holds_nothing() -> None:
    """Read for one text, then written without drafts for another, which is asked again with drafts."""
    seen = Seen()
    row = OneRow(watched(seen), drafts=3, n_pages=12)
    row.ask(range(36), 8)
    row.ask(range(50, 54), 3)
    row.lever.drafts = 0
    row.ask(range(20, 56), 8)
    row.lever.drafts = 3
    seen.fed.clear()
    assert row.ask(range(20, 56), 8).cached_tokens == 32
    assert seen.fed[0] == 36


def test_a_page_read_in_part_is_read_again() -> None:
    """Drafts stop in the middle of a page, which is filled without."""
    seen = Seen()
    row = OneRow(watched(seen), drafts=3, page_size=16, chunk=24)
    bench, lever = row.bench, row.lever
    bench.scheduler.submit(Request("r", tuple(range(38)), SamplingParams(max_tokens=20, temperature=0.0), 0))
    bench.advance()
    lever.drafts = 0
    bench.run()
    lever.drafts = 3
    seen.fed.clear()
    assert row.ask(range(38), 8).cached_tokens == 32
    assert seen.fed[0] == 38 - 16


def test_a_page_exchanged_for_an_unread_one_is_read_again() -> None:
    """Two rows write the same text, the older one without drafts: its pages take the place of the other's."""
    seen = Seen()
    b = tiny_bench(prompt_stream(), FixedDrafts(2), watched(seen, other_shape()), lookahead=0)
    for number, max_drafts in enumerate((0, -1)):
        params = SamplingParams(max_tokens=40, temperature=0.0, max_drafts=max_drafts)
        b.scheduler.submit(Request(f"r{number}", tuple(range(9)), params, number))
    b.run()
    b.check_conserved()
    assert max(seen.fed[1:]) == 5, "an exchanged page and the newest token"


def claims_refused_drafts(patch: pytest.MonkeyPatch) -> None:
    def keep(stops, drafted, lengths, slots) -> None:
        stops[slots] = drafted[slots]

    patch.setattr(small, "_keep_accepted", keep)


def claims_the_newest_token(patch: pytest.MonkeyPatch) -> None:
    def keep(stops, drafted, lengths, slots) -> None:
        for slot in slots:
            stops[slot] = max(stops[slot], min(drafted[slot], lengths[slot]))
            drafted[slot] = 0

    patch.setattr(small, "_keep_accepted", keep)
    patch.setattr(SmallModelDrafter, "lag", lambda self, slot: 1)


def marks_are_never_cleared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageMarks, "enter", lambda self, entry: None)


def pages_are_marked_before_they_are_full(patch: pytest.MonkeyPatch) -> None:
    mark = PageMarks.mark

    def early(self: PageMarks, table, slots, starts, begins, stops) -> None:
        mark(self, table, slots, starts, begins, stops + self.page_size - 1)

    patch.setattr(PageMarks, "mark", early)


def exchanged_pages_are_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SmallModelDrafter, "enter", lambda self, entry: self._marks.enter(entry))


def prefix_hits_are_trusted(patch: pytest.MonkeyPatch) -> None:
    def admit(self: SmallModelDrafter, slot: int, tokens, computed: int) -> None:
        self._stops[slot], self._drafted[slot] = computed, 0

    patch.setattr(SmallModelDrafter, "admit", admit)


MUTANTS = {
    claims_refused_drafts: test_drafts_are_those_of_the_whole_text,
    claims_the_newest_token: test_drafts_are_those_of_the_whole_text,
    prefix_hits_are_trusted: test_drafts_are_those_of_the_whole_text,
    marks_are_never_cleared: test_a_page_given_out_anew_holds_nothing,
    pages_are_marked_before_they_are_full: test_a_page_read_in_part_is_read_again,
    exchanged_pages_are_trusted: test_a_page_exchanged_for_an_unread_one_is_read_again,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_noticed(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule, broken on purpose, makes a test fail that holds otherwise."""
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        MUTANTS[mutant]()


def test_texts_beyond_the_small_models_limit_get_no_drafts() -> None:
    short = tiny_transformer(torch.float64, vocab=VOCAB, max_positions=32)
    b = tiny_bench(prompt_stream(), FixedDrafts(3), SmallModelChoice(short, "short").open, lookahead=0)
    request = Request("r", tuple(range(20)), SamplingParams(max_tokens=40, temperature=0.0), 0)
    b.scheduler.submit(request)
    b.run()
    assert 0 < request.offered < 40
    assert len(b.answers["r"]) == 40


def test_memory_is_told_before_it_is_taken() -> None:
    model = other_shape()
    kv = PagedKV.allocate(model.config, 7, 4, model.dtype)
    held = sum(pages.nbytes for pages in (*kv.k_pages, *kv.v_pages))
    assert SmallModelChoice(model, "tiny").page_bytes(4) * 7 == held
