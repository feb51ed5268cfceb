"""A CUDA device as the engine asks for one: its stream, its memory, and the runner of padded steps.

The same padded steps run on a CPU too, without graphs and by the torch form of every kernel: that is how they are
compared with the CPU's own runner where there is no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from overdrive.config import EngineOptions
from overdrive.device.attention.reference import Heads, PagedKV, ReferenceAttention
from overdrive.device.base import Parts, impose
from overdrive.device.batch import Batch
from overdrive.device.costs import CostSizes, whole_pages
from overdrive.device.cuda.ahead import compile_ahead
from overdrive.device.cuda.attention import CudaAttention, SplitSpace
from overdrive.device.cuda.buffers import Sizes, StepBuffers
from overdrive.device.cuda.graphs import CudaGraphs, NoGraphs
from overdrive.device.cuda.launches import Launches
from overdrive.device.cuda.memory import check_device, free_bytes
from overdrive.device.cuda.products import time_products
from overdrive.device.cuda.runner import CudaRunner
from overdrive.device.cuda.sampling import CudaSampler
from overdrive.device.cuda.sampling_state import StaticSamplingState
from overdrive.device.cuda.shapes import DRAFTS, USUAL, Extent, Grid, bucket, candidates, refined
from overdrive.device.cuda.shapes import ROWS as SIZES
from overdrive.device.cuda.stream import CudaStream, SideStream, run_here
from overdrive.device.cuda.timing import CudaLaps, NoLaps
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.device.stream import InlineStream, Stream, Wait
from overdrive.draft.forced import ForcedRuns
from overdrive.draft.padded import PaddedRoom
from overdrive.grammar.base import mask_words
from overdrive.limits import Limits
from overdrive.machine import available_bytes, usable_cores
from overdrive.model.ops import Attention
from overdrive.model.transformer import Transformer
from overdrive.progress import Progress
from overdrive.types import MAX_DRAFTS

ROWS, STEP_TOKENS, CHUNK = 256, 2048, 2048

COST_SECONDS = 5.0

KEYS = 32
"""Of a tile, where all tiles must be alike."""

GRAPH_BYTES = 2 << 30
"""Memory for what the driver keeps of recorded graphs and of libraries."""


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU; with a CPU as `torch_device`, its stand-in for tests."""

    torch_device: torch.device
    lookahead: int = 1

    team = None
    threads = 1
    kv_share = 1.0

    def resolve(self, options: EngineOptions) -> EngineOptions:
        """`options` with this device's own number wherever they leave one open."""
        given = options.scheduler
        rows = given.max_rows or min(ROWS, given.max_step_tokens or ROWS)  # each feeds a token
        tokens = given.max_step_tokens or max(STEP_TOKENS, rows)
        chunk = given.chunk or min(CHUNK, tokens)
        return replace(options, scheduler=replace(given, max_rows=rows, max_step_tokens=tokens, chunk=chunk))

    @property
    def writes_ahead(self) -> bool:
        """What rows say of it does not reach the device."""
        return True

    @property
    def mask_threads(self) -> int:
        """Half of the processor, which has little else to do while a step runs; four at most, since a third of the work
        is the interpreter's, which one thread has at a time."""
        return max(1, min(4, usable_cores() // 2))

    @property
    def name(self) -> str:
        """The GPU."""
        return torch.cuda.get_device_name(self.torch_device) if self.torch_device.type == "cuda" else "cpu"

    def cost_sizes(self, limits: Limits) -> CostSizes:
        """Numbers of rows up to the most there may be, and texts that are more than a cache between holds."""
        return CostSizes(
            rows=(*(size for size in SIZES if size < limits.max_rows), limits.max_rows),
            most_tokens=limits.max_step_tokens,
            short=whole_pages(min(256, limits.max_model_len // 4), limits.page_size),
            long=whole_pages(min(2048, limits.max_model_len // 2), limits.page_size),
            texts=min(8, limits.max_rows),
            long_rows=min(64, limits.max_rows),
            seconds=COST_SECONDS,
            padded=True,
        )

    def free_bytes(self, options: EngineOptions, model: Transformer) -> int:
        """What the options let this process take of the device, less what a step itself will need."""
        if self.torch_device.type != "cuda":
            return available_bytes()
        _, total = torch.cuda.mem_get_info(self.torch_device)
        unused = int((1 - options.memory.device_share) * total)
        return free_bytes(self.torch_device) - unused - step_bytes(options, model)

    def open_stream(self, wait: Wait) -> Stream:
        """The stream that all launches of an engine go to."""
        return CudaStream(self.torch_device, wait) if self.torch_device.type == "cuda" else InlineStream()

    def open_runner(self, parts: Parts, stream: Stream, progress: Progress) -> CudaRunner:
        """Slots, pages, sampler and drafter around a model; its steps recorded where the options say so."""
        if not (isinstance(stream, CudaStream) and parts.options.device.graphs):
            return self.assemble(parts, stream)
        limits = parts.limits
        grid = _timed_grid(parts, stream, progress) if parts.ranks.count == 1 else USUAL  # all ranks must have the same
        runner = self.assemble(parts, stream, grid)
        shapes = grid.reachable(limits.max_rows, limits.max_step_tokens, parts.plans)
        progress("kernels", 0, 1)
        compile_ahead(one for one in runner.attention(shapes) if isinstance(one, CudaAttention))
        progress("kernels", 1, 1)
        progress("graphs", 0, len(shapes))
        runner.capture(shapes, lambda done: progress("graphs", done, len(shapes)))
        return runner

    def assemble(self, parts: Parts, stream: Stream, grid: Grid = USUAL) -> CudaRunner:
        """The runner, with nothing recorded; graphs and device times only on a stream of the device."""
        model, limits, device, config = parts.model, parts.limits, self.torch_device, parts.model.config
        slots = limits.max_rows + 1  # the last one is that of padding rows
        extent = Extent.of(limits.max_rows, limits.max_step_tokens, parts.drafts)
        kv = PagedKV.allocate(config, parts.n_pages, limits.page_size, model.dtype, device)
        state = SlotState(slots, limits.max_model_len, limits.page_size, device)
        sampling = StaticSamplingState(slots, config.vocab, _scores_dtype(model.dtype), device)
        sampler = CudaSampler(extent.rows * extent.queries, config.vocab, device)
        attend = Attending(parts.options.model.deterministic)

        def draw(logits: Tensor, layout: Layout, drafts: Tensor, ids: Tensor, out: Tensor) -> None:
            sampler.draw(logits, layout, drafts, sampling, "noisy", ids, out)

        drafter = parts.choice.open_padded(PaddedRoom(device, state, sampling, parts.n_pages, draw, attend))
        imposed = impose(parts.options.draft.simulate_acceptance, sampling, extent.queries - 1)
        forced = ForcedRuns(slots, parts.drafts, device)
        attention = partial(attend, kv, config)
        launches = Launches(model, attention, state, sampling, sampler, drafter, forced, imposed, parts.ranks)
        words = mask_words(config.vocab) if parts.ranks.rank == 0 else 0
        taps = len(drafter.taps) * config.hidden
        sizes = Sizes(extent, state.page_table.shape[1], config.hidden, taps, words, forced.shape)
        buffers = StepBuffers(sizes, model.dtype, device)
        if not isinstance(stream, CudaStream):
            return CudaRunner(launches, buffers, stream, NoGraphs(), device, NoLaps, run_here, grid)
        aside = SideStream(device).run
        return CudaRunner(launches, buffers, stream, CudaGraphs(stream.stream), device, CudaLaps, aside, grid)


class Attending:
    """Makes attention for passes, whichever network's. What the kernels leave for each other is made once for each."""

    def __init__(self, deterministic: bool = False) -> None:
        """deterministic: keys are added up one tile after the other, however many rows, queries and keys there are."""
        self._deterministic = deterministic
        self._spaces: dict[Heads, SplitSpace] = {}

    def __call__(self, kv: PagedKV, heads: Heads, batch: Batch, queries: int, mixed: bool) -> Attention:
        """Attention over the pages of a network with these heads. Rows have at most `queries` tokens unless mixed."""
        if not batch.ids.is_cuda:
            return ReferenceAttention(kv, batch, heads)
        space = self._spaces.get(heads)
        if space is None:
            space = self._spaces[heads] = SplitSpace.allocate([heads], MAX_DRAFTS + 1, batch.ids.device)
        attention = CudaAttention(kv, heads, batch, queries, mixed, space)
        if self._deterministic:
            attention.splits = attention.prefill_splits = attention.least = 1
            attention.decode = attention.decode._replace(keys=KEYS)
            attention.prefill = attention.prefill._replace(keys=KEYS)
        return attention


def _timed_grid(parts: Parts, stream: CudaStream, progress: Progress) -> Grid:
    """The sizes that this model's products are fast at."""
    rows, plans = parts.limits.max_rows, (0, *parts.plans)
    queries = {bucket(k, DRAFTS) + 1 for k in plans}
    tokens = {size * q for q in queries for size in candidates(rows, q)}
    progress("shapes", 0, 1)
    seconds = time_products(parts.model, tokens, stream.stream)
    progress("shapes", 1, 1)
    return refined(rows, plans, seconds)


def step_bytes(options: EngineOptions, model: Transformer) -> int:
    """Roughly what the tensors of the largest step take beside weights and pages, and the graphs with them."""
    limits, config = options.scheduler, model.config
    extent = Extent.of(limits.max_rows, limits.max_step_tokens, options.draft.drafts)
    logits = extent.rows * extent.queries * config.vocab * 4
    activations = extent.tokens * (8 * config.hidden + 3 * config.mlp) * model.dtype.itemsize
    counts = limits.max_rows * config.vocab * 5
    masks = extent.rows * extent.queries * mask_words(config.vocab) * 4
    return 2 * logits + 2 * activations + counts + masks + GRAPH_BYTES


def _scores_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def open_cuda(index: int, options: EngineOptions) -> CudaDevice:
    """A GPU. Raises OverdriveError, one line that says what to do, where torch cannot use it."""
    device = torch.device("cuda", index)
    check_device(device)
    torch.cuda.set_device(device)
    return CudaDevice(device, 0 if options.device.overlap == "off" else 1)
