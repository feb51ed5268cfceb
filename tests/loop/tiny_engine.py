"""The real runner on a tiny random model in float64, and the same model one token at a time without cache or batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from overdrive.commit import Committer
from overdrive.device.attention.reference import PagedKV, ReferenceAttention
from overdrive.device.batch import Batch
from overdrive.device.cpu.device import CpuDevice
from overdrive.device.cpu.team import Team
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.device.runner import Runner
from overdrive.device.sampling import Layout, Masks, SamplingState, sample
from overdrive.device.state import SlotState
from overdrive.device.stream import Stream
from overdrive.draft import Drafter, Room
from overdrive.grammar.constraint import Constraint, Free
from overdrive.grammar.sheet import blank_sheet
from overdrive.grammar.walker import Walker
from overdrive.limits import Limits
from overdrive.loop import Loop, Watch
from overdrive.loop import Runner as LoopRunner
from overdrive.memory.pages import PagePool
from overdrive.memory.prefix import PrefixCache
from overdrive.model.dummy import tiny_transformer
from overdrive.model.transformer import Transformer
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.controller import Controller
from overdrive.scheduler import Scheduler
from overdrive.types import Finish, FinishReason, SamplingParams

from .bench import Bench
from .toy import ByteStops

VOCAB = 64
MAX_MODEL_LEN = 96


@lru_cache(maxsize=1)
def tiny() -> Transformer:
    return tiny_transformer(torch.float64, vocab=VOCAB)


@lru_cache(maxsize=1)
def device() -> CpuDevice:
    """Passes in float64 run as they are written, those in float32 on the CPU's kernels."""
    return CpuDevice(Team(1), 0, torch.device("cpu"))


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much of everything a bench has."""

    n_pages: int = 200
    page_size: int = 4
    max_rows: int = 5
    chunk: int = 16
    max_step_tokens: int = 64
    lookahead: int = 1
    cached: bool = True
    max_model_len: int = MAX_MODEL_LEN

    def limits(self) -> Limits:
        return Limits(
            max_rows=self.max_rows,
            max_step_tokens=self.max_step_tokens,
            chunk=self.chunk,
            max_queue=100,
            max_model_len=self.max_model_len,
            page_size=self.page_size,
        )


def tiny_bench(
    stream: Stream,
    controller: Controller,
    make_drafter,
    *,
    model: Transformer | None = None,
    ranks: Ranks = ALONE,
    lead: Callable[[Runner], LoopRunner] = lambda runner: runner,
    watches: Sequence[Watch] = (),
    **bounds,
) -> Bench:
    """make_drafter: of a Room. model: `tiny()` by default. lead: makes the runner one that others follow.

    watches: are told of every settled step.

    bounds: of `Bounds`. Everything else is the engine's own.
    """
    model, given = model or tiny(), Bounds(**bounds)
    state = SlotState(given.max_rows, given.max_model_len, given.page_size)
    kv = PagedKV.allocate(model.config, given.n_pages, given.page_size, model.dtype)
    sampling, sampler = SamplingState(given.max_rows, VOCAB, model.dtype), device().sampler(VOCAB, model.dtype)
    drafter: Drafter = make_drafter(Room(device(), state, sampling, sampler, given.n_pages))
    forward = device().forward(model, kv, drafter.taps)
    rest = {"ranks": ranks, "ahead": given.lookahead > 0}
    runner = Runner(forward, model.logits, state, sampling, sampler, drafter, stream, **rest)
    return around(given, controller, runner.sources, lead(runner), watches, Walker(ahead=given.lookahead > 0))


def around(
    given: Bounds,
    controller: Controller,
    sources: Sequence[str],
    runner: LoopRunner,
    watches: Sequence[Watch] = (),
    walker: Walker | None = None,
) -> Bench:
    """Scheduler, commit and loop around a runner. sources: of its drafts. walker: as of `Loop`."""
    pool = PagePool(given.n_pages)
    scheduler = Scheduler(given.limits(), pool, PrefixCache(pool, given.page_size) if given.cached else None)
    committer = Committer(scheduler, DraftCounts(sources, 16))
    loop = Loop(scheduler, controller, runner, committer, given.lookahead, watches, walker)
    return Bench(scheduler, runner, committer, loop)


@torch.inference_mode()
def next_logits(tokens: Sequence[int]) -> torch.Tensor:
    """[1, V]: the model's logits after `tokens`, computed from nothing."""
    model, count = tiny(), len(tokens)
    kv = PagedKV.allocate(model.config, 2, 128, torch.float64)
    places = torch.arange(count)
    batch = Batch(
        ids=torch.tensor(tokens),
        positions=places,
        rows=torch.zeros(count, dtype=torch.int64),
        offsets=torch.tensor([0, count]),
        page_table=torch.tensor([[1]], dtype=torch.int32),
        starts=torch.tensor([0]),
        gaps=torch.tensor([[0, 0]]),
        writes=128 + places,
        wanted=places[-1:],
    )
    hidden = model.forward(batch, ReferenceAttention(kv, batch, model.config)).final
    return model.logits(hidden[-1:])


def _mask(constraint: Constraint, output: Sequence[int]) -> tuple[Constraint, Masks]:
    """The constraint behind an output, and its mask there."""
    for token in output:
        constraint.accept(token)
    sheet = blank_sheet(1, 1, 1, VOCAB // 32, (0, 0))
    assert constraint.walk([], sheet.bits, sheet.forced[0]) == 1
    return constraint, Masks(torch.from_numpy(sheet.bits), torch.zeros(1, dtype=torch.int64))


def tiny_oracle(
    prompt: Sequence[int], params: SamplingParams, constraint: Callable[[], Constraint] = Free
) -> tuple[list[int], Finish]:
    """One token at a time, each from the whole text before it. constraint: makes that of an answer not yet begun."""
    tokens, stops = list(prompt), ByteStops(params.stop)
    none = torch.zeros((1, 0), dtype=torch.int64)
    while True:
        state = SamplingState(1, VOCAB, torch.float64)
        state.admit(0, params, tokens, len(prompt))
        zero = torch.zeros(1, dtype=torch.int64)
        layout = Layout(zero, zero, zero, torch.tensor([len(tokens)]))
        followed, masks = _mask(constraint(), tokens[len(prompt) :])
        token = int(sample(next_logits(tokens), layout, none, state, masks))
        tokens.append(token)
        followed.accept(token)
        hit, output_len = stops.push(token), len(tokens) - len(prompt)
        if token in params.stop_token_ids or followed.ended:
            return tokens[len(prompt) :], Finish(FinishReason.STOP, stop_token=token)
        if hit is not None and output_len >= params.min_tokens:
            return tokens[len(prompt) :], Finish(FinishReason.STOP, stop_string=hit.stop)
        if output_len >= params.max_tokens:
            return tokens[len(prompt) :], Finish(FinishReason.LENGTH)
