"""The engine of the CPU around a padded drafter: its steps are padded for the drafter alone, by more than is needed.

Whatever stands in padding is poison: values that are not finite, ids and counts that would be seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

from overdrive.commit import Committer
from overdrive.device.attention.reference import Heads, PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cuda.steps import StepRows
from overdrive.device.runner import LaunchedStep, Runner
from overdrive.device.sampling import Layout, SamplingState, sample
from overdrive.device.state import SlotState
from overdrive.device.stream import Stream
from overdrive.draft import Drafts
from overdrive.draft.padded import PaddedDrafter, PaddedDrafts, PaddedRoom
from overdrive.limits import Limits
from overdrive.loop import Loop
from overdrive.memory.pages import PagePool
from overdrive.memory.prefix import PrefixCache
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.controller import Controller
from overdrive.scheduler import Scheduler
from overdrive.types import Step
from tests.draft.schedules import alike_requests
from tests.loop.bench import Bench, StopAndGo
from tests.loop.lazy import LazyStream
from tests.loop.tiny_engine import MAX_MODEL_LEN, VOCAB, device, tiny

MakePadded = Callable[[PaddedRoom], PaddedDrafter]


def draw(sampling: SamplingState, logits: Tensor, layout: Layout, drafts: Tensor, ids: Tensor, out: Tensor) -> None:
    """As the target draws, over the ids that the network has."""
    scores = torch.full((len(logits), VOCAB), -torch.inf, dtype=sampling.dtype)
    scores[:, ids] = logits
    out.copy_(sample(scores, layout, drafts, sampling))


def attend(kv: PagedKV, heads: Heads, batch: Batch, queries: int, long_rows: bool) -> ReferenceAttention:
    assert long_rows or int(batch.offsets.diff().max()) <= queries
    return ReferenceAttention(kv, batch, heads)


def padded_room(state: SlotState, sampling: SamplingState, n_pages: int) -> PaddedRoom:
    """state and sampling: with a slot for padding."""

    def drawn(logits: Tensor, layout: Layout, drafts: Tensor, ids: Tensor, out: Tensor) -> None:
        draw(sampling, logits, layout, drafts, ids, out)

    return PaddedRoom(torch.device("cpu"), state, sampling, n_pages, drawn, attend)


class PaddingRunner(Runner):
    """Asks a padded drafter what the engine asks of others. Random padding and widths."""

    def __init__(self, rng: random.Random, room: PaddedRoom, forward, drafter: PaddedDrafter, stream: Stream) -> None:
        super().__init__(forward, tiny().logits, room.state, room.sampling, sample, drafter, stream)
        self.padded = drafter
        self._rng = rng
        self._room = room

    def _enter(self, step: Step) -> None:
        with torch.inference_mode():
            self.padded.enter(step)
            for admission in step.admissions:
                self._state.admit(admission)
                self._sampling.admit(admission.slot, admission.params, admission.tokens, admission.prompt_len)
            for entry in sorted(step.page_entries, key=lambda entry: not entry.shared):
                self._state.enter(entry)
            self.padded.entered(step)

    def rows_of(self, step: Step) -> StepRows:
        rows = [(row.slot, row.known, row.drafts, int(row.emits)) for row in step.rows]
        rows += [(self._room.slots, 0, 0, 0)] * self._rng.choice([0, 1, 3])
        return StepRows(torch.tensor(rows).T.contiguous())

    def _draft(self, launched: LaunchedStep) -> None:
        step, drafter = launched.step, self.padded
        rows, most = self.rows_of(step), max(row.drafts for row in step.rows)
        count, columns = len(rows.slots), most + self._rng.choice([0, 0, 2])
        drafts = PaddedDrafts(torch.full((count, columns), 1 << 40), *torch.full((2, count), -9))
        drafter.catch_up(step)
        width = self._rng.choice([width for width in drafter.widths if width >= drafter.width(step)])
        drafter.propose(rows, drafts, width)
        real = len(step.rows)
        assert (drafts.counts <= rows.drafts).all() and (drafts.counts >= 0).all()
        tokens, counts = drafts.tokens[:real, :most].clone(), drafts.counts[:real].clone()
        tokens[torch.arange(most) >= counts.unsqueeze(1)] = 0
        launched.drafts = Drafts(tokens, counts, drafts.sources[:real].clone())

    def _absorb(self, launched: LaunchedStep) -> None:
        rows, step, done = self.rows_of(launched.step), launched.step, launched.verified
        spare = len(rows.slots) - len(step.rows)
        more = self._rng.choice([0, 1, 9])
        batch = padded(launched.batch, more, spare)
        taps = torch.nn.functional.pad(launched.hidden.taps, (0, 0, 0, more), value=torch.nan)
        tokens = torch.nn.functional.pad(done.tokens, (0, 0, 0, spare))
        counts = torch.nn.functional.pad(done.counts, (0, spare))
        self.padded.absorb(rows, batch, taps, tokens, counts)
        self.padded.extend(step, batch, taps)


def padded(batch: Batch, tokens: int, rows: int) -> Batch:
    """The batch with so many tokens and rows more, which are nobody's."""
    last = len(batch.offsets) - 2 + rows

    def behind(x: Tensor, count: int, value: int) -> Tensor:
        return torch.cat((x, x.new_full((count, *x.shape[1:]), value)))

    return Batch(
        ids=behind(batch.ids, tokens, 0),
        positions=behind(batch.positions, tokens, 0),
        rows=behind(batch.rows, tokens, last),
        offsets=behind(batch.offsets, rows, int(batch.offsets[-1])),
        page_table=behind(batch.page_table, rows, 0),
        starts=behind(batch.starts, rows, 0),
        gaps=behind(batch.gaps, rows, 0),
        writes=behind(batch.writes, tokens, 0),
        wanted=batch.wanted,
    )


def padded_bench(
    rng: random.Random,
    stream: Stream,
    controller: Controller,
    make: MakePadded,
    *,
    n_pages: int = 200,
    page_size: int = 4,
    max_rows: int = 5,
    chunk: int = 16,
    lookahead: int = 1,
    cached: bool = True,
    max_model_len: int = MAX_MODEL_LEN,
) -> Bench:
    """As `tests.loop.tiny_engine.tiny_bench`, around a padded drafter."""
    model, pool = tiny(), PagePool(n_pages)
    limits = Limits(
        max_rows=max_rows,
        max_step_tokens=64,
        chunk=chunk,
        max_queue=100,
        max_model_len=max_model_len,
        page_size=page_size,
    )
    scheduler = Scheduler(limits, pool, PrefixCache(pool, page_size) if cached else None)
    state = SlotState(max_rows + 1, max_model_len, page_size)
    kv = PagedKV.allocate(model.config, n_pages, page_size, model.dtype)
    room = padded_room(state, SamplingState(max_rows + 1, VOCAB, model.dtype), n_pages)
    drafter = make(room)
    runner = PaddingRunner(rng, room, device().forward(model, kv, drafter.taps), drafter, stream)
    committer = Committer(scheduler, DraftCounts(drafter.sources, 16))
    return Bench(scheduler, runner, committer, Loop(scheduler, controller, runner, committer, lookahead))


def random_padded_schedule(rng: random.Random, make: MakePadded, longest: int) -> Bench:
    """An engine that has answered a few requests, everything about it random. Ends with the first failed assertion.

    longest: most steps in a row without drafts.
    """
    b = padded_bench(
        rng,
        LazyStream(rng),
        StopAndGo(rng, longest),
        make,
        n_pages=rng.choice([28, 36, 120]),
        page_size=4,
        chunk=rng.choice([5, 16, 64]),
        max_rows=rng.choice([1, 3, 4]),
        lookahead=rng.choice([0, 1, 1]),
        cached=rng.random() < 0.8,
    )
    for request in alike_requests(rng, rng.randint(3, 8)):
        b.scheduler.submit(request)
        for _ in range(rng.choice([0, 0, 10])):
            b.advance()
    b.run()
    b.check_conserved()
    return b
