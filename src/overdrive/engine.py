"""The engine: builds every room from options, model and machine, and speaks for them.

`build` is the one place where options become numbers. `Engine` is used in process (llm.py) and, behind the link, by
`run_engine` in a process of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from overdrive.commit import Committer, Delta
from overdrive.config import EngineOptions
from overdrive.device.attention.reference import PagedKV
from overdrive.device.build import open_device
from overdrive.device.runner import Runner
from overdrive.device.sampling import SamplingState
from overdrive.device.state import SlotState
from overdrive.draft import make_drafter
from overdrive.errors import BadRequest, OverdriveError
from overdrive.loop import Loop
from overdrive.machine import available_bytes
from overdrive.memory.pages import PagePool
from overdrive.memory.prefix import PrefixCache
from overdrive.model.config import ModelConfig
from overdrive.model.weights import load
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.controller import Controller, FixedDrafts
from overdrive.request import NoStops, Request
from overdrive.scheduler import Limits, Scheduler
from overdrive.text import StopMatcher, open_text
from overdrive.types import OVERSHOOT, Finish, FinishReason, Outcome, SamplingParams, Step
from overdrive.wire import (
    Abort,
    Batch,
    Drain,
    EngineEndpoint,
    EngineInfo,
    Failed,
    Loading,
    Logprobs,
    Ready,
    Stats,
    Stop,
    Submit,
    Tokens,
)

Progress = Callable[[str, int, int], None]

KV_SHARE = 0.3
"""Share of the memory still available after loading that the KV cache takes when no size is given."""

STATS_SECONDS = 0.5
IDLE_SECONDS = 0.2


class Engine:
    """A model that answers requests, step by step. Used by one thread."""

    def __init__(
        self,
        info: EngineInfo,
        scheduler: Scheduler,
        committer: Committer,
        loop: Loop,
        meter: Meter,
        token_bytes: list[bytes],
        close: Callable[[], None],
    ) -> None:
        self.info = info
        self.close = close
        self._scheduler = scheduler
        self._committer = committer
        self._loop = loop
        self._meter = meter
        self._token_bytes = token_bytes
        self._arrivals = 0

    @property
    def idle(self) -> bool:
        """Nothing is left to do."""
        return self._loop.idle

    def submit(self, request_id: str, prompt: Iterable[int], params: SamplingParams) -> Request:
        """Queue a request. Raises BadRequest, before any work, where it can never be served."""
        tokens = tuple(prompt)
        if self._scheduler.find(request_id) is not None:
            raise BadRequest(f"a request with id {request_id!r} is running already", "id")
        bad = next((token for token in tokens if not 0 <= token < self.info.vocab_size), None)
        if bad is not None:
            raise BadRequest(
                f"prompt token {bad} is outside the vocabulary (0 .. {self.info.vocab_size - 1})", "prompt"
            )
        self._arrivals += 1
        stops = StopMatcher(params.stop, self._token_bytes) if params.stop else NoStops()
        request = Request(request_id, tokens, params, self._arrivals, stops)
        self._scheduler.submit(request)
        return request

    def abort(self, request_id: str) -> list[Delta]:
        """End a request that nobody waits for; nothing when there is none of that id."""
        request = self._scheduler.find(request_id)
        return [self._committer.abort(request, Finish(FinishReason.ABORT))] if request else []

    def abort_all(self, finish: Finish) -> list[Delta]:
        """End every request."""
        requests = [*self._scheduler.waiting, *(r.request for r in self._scheduler.running.values())]
        return [self._committer.abort(request, finish) for request in requests]

    def advance(self) -> list[Delta]:
        """One turn of the loop: what it committed."""
        return self._loop.advance()

    def stats(self) -> Stats:
        """Counters since the start."""
        scheduler, meter, counts = self._scheduler, self._meter, self._meter.counts
        cache, times = scheduler.cache, self._loop.times
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_used=scheduler.pool.usable - scheduler.pool.available,
            pages_cached=scheduler.pool.idle,
            pages_total=scheduler.pool.usable,
            steps=times.steps,
            rounds=meter.rounds,
            generated=self._committer.generated_tokens,
            prefilled=self._committer.prefilled_tokens,
            offered=counts.reached.tolist(),
            accepted=counts.accepted.tolist(),
            plans=[meter.plans[k] for k in range(max(meter.plans, default=0) + 1)],
            preemptions=scheduler.preemptions,
            launch_seconds=(meter.seconds[0], meter.seconds[1], meter.seconds[2], meter.seconds[3]),
            host_seconds=times.scheduled + times.settled,
            prompt_tokens=cache.asked_tokens if cache else 0,
            prefix_tokens=cache.hit_tokens if cache else 0,
        )


class Meter:
    """What settled steps tell: device time by launch, plans by K, rounds of decode rows."""

    def __init__(self, counts: DraftCounts) -> None:
        self.counts = counts
        self.seconds = [0.0] * 4
        self.plans: Counter[int] = Counter()
        self.rounds = 0

    def add(self, step: Step, outcome: Outcome) -> None:
        """Count one settled step."""
        self.seconds = [a + b for a, b in zip(self.seconds, outcome.seconds, strict=True)]
        self.plans[step.plan.drafts] += 1
        self.rounds += sum(row.emits for row in step.rows)


def build(model: str, options: EngineOptions, progress: Progress, controller: Controller | None = None) -> Engine:
    """Load a model and put an engine around it. Raises OverdriveError, one line, for whatever is wrong with either.

    controller: decides each step's drafts; by default always `options.draft.drafts`.
    """
    device = open_device(options.device)
    loaded = load(model, options.model, device.torch_device, progress, device.team)
    config, transformer = loaded.config, loaded.transformer
    max_model_len = loaded.max_model_len
    n_pages = count_pages(config, options, max_model_len, transformer.dtype)
    page_size = options.memory.page_size

    progress("Opening tokenizer", 0, 1)
    tokenizer, _ = open_text(loaded.source, options.model)
    state = SlotState(options.scheduler.max_rows, max_model_len, page_size)
    sampling = SamplingState(options.scheduler.max_rows, config.vocab, transformer.dtype)
    kv = PagedKV.allocate(config, n_pages, page_size, transformer.dtype)
    drafter = make_drafter(options.draft, state.history, state.lengths)
    stream = device.open_stream()
    runner = Runner(
        transformer,
        device.attention(kv, config),
        state,
        sampling,
        device.sampler(config.vocab, transformer.dtype),
        drafter,
        stream,
    )
    drafts = 0 if options.draft.draft == "none" else options.draft.drafts
    limits = Limits(
        max_rows=options.scheduler.max_rows,
        max_step_tokens=options.scheduler.max_step_tokens,
        chunk=options.scheduler.chunk,
        max_queue=options.scheduler.max_queue,
        max_model_len=max_model_len,
        page_size=page_size,
    )
    pool = PagePool(n_pages)
    scheduler = Scheduler(limits, pool, PrefixCache(pool, page_size) if options.memory.prefix_cache else None)
    counts = DraftCounts(drafts)
    meter = Meter(counts)
    committer = Committer(scheduler, counts, meter.add)
    loop = Loop(scheduler, controller or FixedDrafts(drafts), runner, committer, device.lookahead)
    info = EngineInfo(
        model=model,
        architecture=config.architecture,
        source=str(loaded.source),
        max_model_len=max_model_len,
        vocab_size=config.vocab,
        eos_ids=config.eos_ids or tuple(tokenizer.eos_ids),
        defaults=_defaults(config),
        kv_tokens=pool.usable * page_size,
        page_size=page_size,
        max_rows=limits.max_rows,
        max_queue=limits.max_queue,
        drafter=options.draft.draft,
        drafts=drafts,
        precision=options.model.precision,
        threads=device.threads,
        overlap=device.lookahead > 0,
        device=str(device.torch_device),
    )
    return Engine(info, scheduler, committer, loop, meter, tokenizer.token_bytes(), stream.close)


def count_pages(config: ModelConfig, options: EngineOptions, max_model_len: int, dtype: torch.dtype) -> int:
    """Pages of the KV cache, the scratch page included: as asked, or a share of the memory that is left.

    Never more than all rows at full length could fill. Raises OverdriveError when not even a page for each row fits.
    """
    size, rows = options.memory.page_size, options.scheduler.max_rows
    if options.memory.kv_tokens:
        return 1 + -(-options.memory.kv_tokens // size)
    page_bytes = 2 * config.layers * config.kv_heads * config.head_dim * size * dtype.itemsize
    most = rows * -(-(max_model_len + OVERSHOOT) // size)
    pages = min(most, int(available_bytes() * KV_SHARE) // page_bytes)
    if pages < rows:
        raise OverdriveError(
            f"not enough memory for a KV cache: {pages} pages of {page_bytes} bytes for {rows} rows; "
            "lower --max-rows, or give --kv-tokens"
        )
    return 1 + pages


def _defaults(config: ModelConfig) -> dict[str, float]:
    """Sampling values the model's authors suggest, by parameter name."""
    found = config.generation
    return {
        "temperature": found.temperature,
        "top_p": found.top_p,
        "top_k": float(found.top_k),
        "repetition_penalty": found.repetition_penalty,
    }


class _Served:
    """An engine behind the link."""

    def __init__(self, engine: Engine, link: EngineEndpoint) -> None:
        self._engine = engine
        self._link = link
        self._draining = False
        self._stopped = False
        self._told = 0.0

    def run(self) -> None:
        """Serve until told to stop, or drained."""
        while not (self._stopped or (self._draining and self._engine.idle)):
            for message in self._link.poll(IDLE_SECONDS if self._engine.idle else 0.0):
                self._take(message)
            if not self._engine.idle:
                self._publish(self._engine.advance())
            self._tell_stats()

    def _take(self, message: Submit | Abort | Drain | Stop) -> None:
        match message:
            case Submit():
                try:
                    self._engine.submit(message.id, message.prompt, message.params)
                except BadRequest as error:
                    refusal = Tokens(message.id, finish=FinishReason.ERROR, error=str(error), status=error.status)
                    self._link.send(Batch([refusal]))
            case Abort():
                self._publish(self._engine.abort(message.id))
            case Drain():
                self._draining = True
            case Stop():
                self._publish(self._engine.abort_all(Finish(FinishReason.ABORT)))
                self._stopped = True

    def _publish(self, deltas: list[Delta]) -> None:
        if deltas:
            self._link.send(Batch([as_message(delta) for delta in deltas]))

    def _tell_stats(self) -> None:
        now = time.monotonic()
        if now - self._told > STATS_SECONDS:
            self._told = now
            self._link.send(self._engine.stats())


def as_message(delta: Delta) -> Tokens:
    """A delta as it crosses the link."""
    finish = delta.finish
    scores, prompt_scores = delta.logprobs, delta.prompt_logprobs
    return Tokens(
        id=delta.request.id,
        ids=list(delta.tokens),
        accepted=delta.accepted,
        offered=delta.offered,
        logprobs=Logprobs.of(scores, len(scores.chosen)) if scores else None,
        prompt_logprobs=Logprobs.of(prompt_scores, len(prompt_scores.chosen)) if prompt_scores else None,
        cached_tokens=max(delta.request.cached_tokens, 0),
        finish=finish.reason if finish else None,
        stop_string=finish.stop_string if finish else -1,
        stop_token=finish.stop_token if finish else -1,
        error=finish.message if finish else "",
    )


def run_engine(model: str, options: EngineOptions, address: str) -> None:
    """The engine process: load, say so, serve."""
    link = EngineEndpoint(address)
    try:
        engine = build(model, options, lambda label, done, total: link.send(Loading(label, done, total)))
    except OverdriveError as error:
        link.send(Failed(str(error)))
        link.close()
        return
    link.send(Ready(engine.info))
    try:
        _Served(engine, link).run()
    finally:
        engine.close()
        link.close()
