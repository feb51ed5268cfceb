"""The engine: builds every room from options, model and machine, and speaks for them.

`build` is the one place where options become numbers. `Engine` is used in process by llm.py and, behind the link, by
engine_process.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from overdrive.commit import Committer, Delta
from overdrive.compiling import Compiling, open_compiling
from overdrive.config import EngineOptions
from overdrive.deadlines import Deadlines, too_late
from overdrive.device.base import Device, Parts
from overdrive.device.build import open_device
from overdrive.device.cpu.precompile import Precompiler
from overdrive.device.parallel.followers import OtherRanks
from overdrive.device.parallel.ranks import Ranks
from overdrive.device.parallel.starting import start_ranks
from overdrive.draft import Choice, choose
from overdrive.errors import BadRequest, OverdriveError
from overdrive.gears import Gears, Site, open_gears, settle_drafts
from overdrive.grammar.walker import Walker
from overdrive.limits import Limits
from overdrive.loop import Loop
from overdrive.memory.pages import PagePool
from overdrive.memory.prefix import PrefixCache
from overdrive.meter import Meter, draft_stats
from overdrive.model.config import ModelConfig
from overdrive.model.forms import precision_meant
from overdrive.model.weights import Loaded, load
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.controller import Controller
from overdrive.policy.lever import Lever
from overdrive.policy.setting import Setting, parse_setting
from overdrive.progress import Progress
from overdrive.request import NoStops, Request
from overdrive.scheduler import Scheduler
from overdrive.text import StopMatcher, open_text
from overdrive.trace import Trace
from overdrive.types import OVERSHOOT, Finish, FinishReason, SamplingParams
from overdrive.wire import EngineInfo, Stats

COMPILING_SECONDS = 0.01
"""How long a turn may wait where there is nothing but grammars to wait for: messages are read between turns."""


class Engine:
    """A model that answers requests, step by step. Used by one thread."""

    def __init__(
        self,
        info: EngineInfo,
        scheduler: Scheduler,
        committer: Committer,
        lever: Lever,
        loop: Loop,
        meter: Meter,
        token_bytes: list[bytes],
        compiling: Compiling,
        others: OtherRanks,
        close: Callable[[], None],
    ) -> None:
        self.info = info
        self.close = close
        self._scheduler = scheduler
        self._committer = committer
        self._lever = lever
        self._loop = loop
        self._meter = meter
        self._token_bytes = token_bytes
        self._compiling = compiling
        self._others = others
        self._deadlines = Deadlines()
        self._arrivals = 0
        self._submitted = 0

    @property
    def idle(self) -> bool:
        """Nothing is left to do."""
        return self._loop.idle

    @property
    def failure(self) -> str:
        """Why no step can be run any more, in one line; empty while all is well."""
        return self._others.failure or self._loop.failure

    def submit(
        self, request_id: str, prompt: Iterable[int], params: SamplingParams, patience: float = inf, waited: float = 0.0
    ) -> Request:
        """Queue a request. Raises BadRequest, before any work, where it can never be served.

        patience: seconds in which it must be answered, `waited` of them gone.
        """
        tokens = tuple(prompt)
        if self._scheduler.find(request_id) is not None:
            raise BadRequest(f"a request with id {request_id!r} is running already", "id")
        bad = next((token for token in tokens if not 0 <= token < self.info.vocab_size), None)
        if bad is not None:
            raise BadRequest(
                f"prompt token {bad} is outside the vocabulary (0 .. {self.info.vocab_size - 1})", "prompt"
            )
        if params.grammar is not None and self.info.simulated_acceptance:
            raise BadRequest(
                "this server runs with --simulate-acceptance, under which no text can be held to a structure", "grammar"
            )
        self._arrivals += 1
        stops = StopMatcher(params.stop, self._token_bytes) if params.stop else NoStops()
        deadline = time.monotonic() + patience - waited
        request = Request(request_id, tokens, params, self._arrivals, stops, deadline=deadline, patience=patience)
        request.submitted = time.monotonic()
        self._scheduler.submit(request)
        self._submitted += 1
        self._deadlines.note(request)
        self._compiling.hold(request)
        return request

    def abort(self, request_id: str) -> list[Delta]:
        """End a request that nobody waits for; nothing when there is none of that id."""
        request = self._scheduler.find(request_id)
        return [self._committer.abort(request, Finish(FinishReason.ABORT))] if request else []

    def abort_all(self, finish: Finish) -> list[Delta]:
        """End every request."""
        return [self._committer.abort(request, finish) for request in list(self._scheduler.living())]

    def shift(self, speculation: str) -> None:
        """Who decides how much is drafted from the next step on. Raises BadRequest, see `policy.lever`."""
        self._lever.shift(speculation)

    def advance(self) -> list[Delta]:
        """One turn of the loop: what it committed. After a failure every request ends with it as its error."""
        if failure := self.failure:
            return self.abort_all(Finish(FinishReason.ERROR, message=failure))
        late = self._deadlines.passed(self._scheduler.living(), time.monotonic())
        refused = [self._committer.abort(request, too_late(request)) for request in late]
        refused += [
            self._committer.abort(
                request, Finish(FinishReason.ERROR, message=str(error), status=error.status, code=error.code)
            )
            for request, error in self._compiling.release()
        ]
        if self._scheduler.held_alone and self._loop.settled:
            self._compiling.wait(0.0 if refused else COMPILING_SECONDS)
            return refused
        deltas = self._loop.advance()
        for request in self._committer.take_parted():
            self._compiling.hold_again(request)
        return refused + deltas

    def stats(self) -> Stats:
        """Counters since the start."""
        scheduler, meter = self._scheduler, self._meter
        cache, times = scheduler.cache, self._loop.times
        return Stats(
            clock=time.monotonic(),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_used=scheduler.pool.usable - scheduler.pool.available,
            pages_cached=scheduler.pool.idle,
            pages_total=scheduler.pool.usable,
            steps=times.steps,
            rounds=self._committer.rounds,
            generated=self._committer.generated_tokens,
            prefilled=self._committer.prefilled_tokens,
            drafts=draft_stats(meter.counts),
            planning=meter.planning(),
            plans=[meter.plans[k] for k in range(max(meter.plans, default=0) + 1)],
            preemptions=scheduler.preemptions,
            launch_seconds=(meter.seconds[0], meter.seconds[1], meter.seconds[2], meter.seconds[3]),
            host_seconds=times.scheduled + times.settled,
            prompt_tokens=scheduler.admitted_tokens,
            prefix_tokens=cache.hit_tokens if cache else 0,
            simulated=bool(self.info.simulated_acceptance),
            slots_used=scheduler.slots_used,
            matchers=self._compiling.matchers,
            submitted=self._submitted,
            finished=dict(self._committer.finished),
            faults=self._loop.faults,
            fault=self._loop.fault,
            speculation=self._lever.setting,
            shifts=self._lever.shifts,
        )


def build(
    model: str,
    options: EngineOptions,
    progress: Progress,
    controller: Controller | None = None,
    precompiler: Precompiler | None = None,
    wrap: Callable[[Controller], Controller] | None = None,
) -> Engine:
    """Load a model and put an engine around it. Raises OverdriveError, one line, for whatever is wrong with either.

    controller: decides each step's drafts; by default the one that `options.draft.speculation` means.
    wrap: makes of that controller the one that decides in its place; for benchmarks that let several take turns.
    precompiler: one that was started earlier, so that it has a lead.
    """
    device = open_device(options, precompiler)
    options = device.resolve(replace(options, draft=settle_drafts(options.draft)))
    others, ranks = start_ranks(model, options, device.torch_device, progress)
    try:
        return _build(model, options, progress, controller, wrap, device, others, ranks)
    except BaseException:
        others.close()
        raise


def _build(
    model: str,
    options: EngineOptions,
    progress: Progress,
    controller: Controller | None,
    wrap: Callable[[Controller], Controller] | None,
    device: Device,
    others: OtherRanks,
    ranks: Ranks,
) -> Engine:
    """The rest of `build`, once every rank is there."""
    loaded = load(model, options.model, device.torch_device, progress, device.team, ranks)
    others.await_loaded(progress)
    progress("tokenizer", 0, 1)
    tokenizer, _ = open_text(loaded.source, options.model)
    progress("tokenizer", 1, 1)
    choice = choose(options, loaded, device, progress)
    setting, plans = _settle_plans(options, choice, controller)
    limits = limits_of(loaded, options)
    site = Site(loaded, choice, device, limits, count_pages(loaded, options, choice, device), options)
    pool = PagePool(site.n_pages)
    others.open(site.n_pages, setting.drafts, plans)
    scheduler = Scheduler(limits, pool, PrefixCache(pool, limits.page_size) if options.memory.prefix_cache else None)
    stream = device.open_stream(others.wait)
    parts = Parts(loaded.transformer, choice, limits, site.n_pages, setting.drafts, plans, options, ranks)
    runner = device.open_runner(parts, stream, progress)
    others.await_ready()
    led = others.lead(runner)
    gears = (
        Gears(controller) if controller else open_gears(setting, runner.sources, runner.row_sizes, led, site, progress)
    )
    lever = Lever(wrap(gears.controller) if wrap else gears.controller, gears.speculation, setting.drafts)
    trace = Trace(Path(options.report.trace)) if options.report.trace else None
    meter = Meter(DraftCounts(runner.sources, setting.drafts), gears.beliefs)
    committer = Committer(scheduler, meter.counts, meter.add)
    watches, walker = (trace.add,) if trace else (), Walker(device.mask_threads, device.writes_ahead)
    loop = Loop(scheduler, lever, led, committer, device.lookahead, watches, walker)
    info = _describe(model, site, tokenizer.eos_ids, runner.sources, setting.drafts, plans, gears)
    compiling = open_compiling(tokenizer, info.vocab_size, info.eos_ids)

    def close() -> None:
        compiling.close()
        walker.close()
        if not (others.failure or loop.failure):  # else it may wait for a rank that is gone, or fail once more
            runner.close()
            stream.close()
        ranks.close()
        others.close()
        if trace:
            trace.close()

    return Engine(info, scheduler, committer, lever, loop, meter, tokenizer.token_bytes(), compiling, others, close)


def _settle_plans(
    options: EngineOptions, choice: Choice, controller: Controller | None
) -> tuple[Setting, tuple[int, ...]]:
    """What speculation comes to with the drafter that was chosen, and every K beside 0 that plans will hold."""
    drafts = 0 if choice.name == "none" else options.draft.drafts
    setting = replace(parse_setting(options.draft.speculation, options.draft.drafts), drafts=drafts)
    return setting, tuple(k for k in (controller or setting).plans if k <= drafts)


def _describe(
    model: str,
    site: Site,
    eos_ids: Sequence[int],
    sources: tuple[str, ...],
    drafts: int,
    plans: tuple[int, ...],
    gears: Gears,
) -> EngineInfo:
    """What is told of the engine. eos_ids: the tokenizer's, where the model names none."""
    loaded, limits, device, options = site.loaded, site.limits, site.device, site.options
    ranks = options.device.tensor_parallel
    return EngineInfo(
        model=model,
        architecture=loaded.config.architecture,
        source=str(loaded.source),
        max_model_len=limits.max_model_len,
        vocab_size=loaded.config.vocab,
        eos_ids=loaded.config.eos_ids or tuple(eos_ids),
        defaults=_defaults(loaded.config),
        kv_tokens=(site.n_pages - 1) * limits.page_size,  # all but the scratch page
        page_size=limits.page_size,
        max_rows=limits.max_rows,
        max_queue=limits.max_queue,
        drafter=site.choice.name,
        draft_model=_name_of(site.choice.model, options.draft.draft_model),
        drafts=drafts,
        sources=sources,
        speculation=gears.speculation,
        plans=plans,
        costs=gears.costs,
        precision=precision_meant(options.model.precision, device.torch_device, loaded.source.suffix == ".gguf"),
        threads=device.threads,
        overlap=device.lookahead > 0,
        device=str(device.torch_device) if ranks == 1 else f"{ranks} x {device.torch_device.type}",
        simulated_acceptance=options.draft.simulate_acceptance if drafts else "",
    )


def _name_of(draft_model: str, given: str) -> str:
    """A draft network's name without this machine's folders: as it was `given` where that is a hub id."""
    if not draft_model or (given and not Path(given).expanduser().exists()):
        return given
    return Path(draft_model).resolve().name


def limits_of(loaded: Loaded, options: EngineOptions) -> Limits:
    """What the scheduler and the device's tables hold to."""
    scheduler = options.scheduler
    return Limits(
        max_rows=scheduler.max_rows,
        max_step_tokens=scheduler.max_step_tokens,
        chunk=scheduler.chunk,
        max_queue=scheduler.max_queue,
        max_model_len=loaded.max_model_len,
        page_size=options.memory.page_size,
    )


def count_pages(loaded: Loaded, options: EngineOptions, choice: Choice, device: Device) -> int:
    """Pages of the KV cache, the scratch page included: as asked, or a share of the memory that is left.

    What the drafter keeps beside every page and for every slot is taken from the same memory.

    The share is never more than all rows at full length could fill. Raises OverdriveError when what was asked does not
    fit, or not even a page for each row.
    """
    size, rows, config = options.memory.page_size, options.scheduler.max_rows, loaded.transformer.config
    page_bytes = 2 * config.layers * config.kv_heads * config.head_dim * size * loaded.transformer.dtype.itemsize
    page_bytes += choice.page_bytes(size)
    free, kept = max(0, device.free_bytes(options, loaded.transformer)), rows * choice.slot_bytes()
    if kept > free:
        raise OverdriveError(
            f"drafting takes {kept >> 20} MiB of memory for {rows} rows, {free >> 20} MiB are free; "
            "lower --max-rows or --draft-window"
        )
    free -= kept
    if asked := -(-options.memory.kv_tokens // size):
        if asked * page_bytes > free:
            raise OverdriveError(
                f"--kv-tokens {options.memory.kv_tokens} needs {asked * page_bytes >> 20} MiB of memory, "
                f"{free >> 20} MiB are free"
            )
        return 1 + asked
    most = rows * -(-(loaded.max_model_len + OVERSHOOT) // size)
    pages = min(most, int(free * device.kv_share) // page_bytes)
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
