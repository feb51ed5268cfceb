"""Runs steps on a CUDA device: static shapes, a graph for each launch, results awaited by event alone.

The same four launches as `overdrive.device.runner.Runner`, and the same text. Where that one makes a step's tensors as
large as the step, this one pads to a shape, so that the launches can be CUDA graphs and the host only describes rows.

    host      describe n | settle n-1 | describe n+1 | settle n ...
    device    [rows of n] draft n, forward n, accept n, [results of n] | [rows of n+1] ...

Knows tensors and steps. Must never know requests, queues or how a plan was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch

from overdrive.device.cuda.buffers import StepBuffers, StepViews
from overdrive.device.cuda.crossing import HostMasks, Ring, describe
from overdrive.device.cuda.graphs import Graphs
from overdrive.device.cuda.launches import Keyed, Launches
from overdrive.device.cuda.sampling_state import Rules
from overdrive.device.cuda.scores import Scores
from overdrive.device.cuda.shapes import DRAFTS, ROWS, USUAL, Grid, StepShape
from overdrive.device.cuda.timing import Laps
from overdrive.device.stream import Event, Launch, Stream
from overdrive.grammar.sheet import NO_MASKS, MaskSheet
from overdrive.model.ops import Attention
from overdrive.types import Outcome, Step

IN_FLIGHT = 3
"""Steps that may be launched and not settled: two that overlap, and the one that is being described."""


class Flight:
    """A launched step. The host reads what became of it only through `wait`."""

    def __init__(self, step: Step, shape: StepShape, place: int, results: Ring, drafts: Ring, laps: Laps) -> None:
        self.step = step
        self.shape = shape
        self.place = place
        self.laps = laps
        self.scores = Scores()
        self.proposed: Event
        self.settled: Event
        self.host_masks: HostMasks
        self._results = results
        self._drafts = drafts

    def drafted(self) -> list[list[int]]:
        """The drafts of each row, once they are written. Raises StreamError when a launch failed."""
        rows, r, k = self.step.rows, self.shape.rows, self.shape.drafts
        if not k:
            return [[] for _ in rows]
        self.proposed.wait()
        written = self._drafts.array(self.place)
        tokens, counts = written[: r * k].reshape(r, k).tolist(), written[r * k : r * k + r].tolist()
        return [line[: min(count, row.drafts)] for row, line, count in zip(rows, tokens, counts, strict=False)]

    def wait(self) -> Outcome:
        """The step's results. Raises StreamError when a launch failed."""
        self.settled.wait()
        count, r, q = len(self.step.rows), self.shape.rows, self.shape.queries
        results = self._results.array(self.place)
        tokens = results[: r * q].reshape(r, q)[:count].copy()
        counts, offered, sources = results[r * q : r * q + 3 * r].reshape(3, r)[:, :count].copy()
        if q == 1:  # nothing was drafted, and nobody wrote these
            offered[:] = sources[:] = 0
        found, of_prompts = self.scores.collect(counts)
        return Outcome(tokens, counts, offered, sources, found, of_prompts, self.laps.seconds())


class CudaRunner:
    """Owns the static tensors and the graphs. Implements `overdrive.loop.Runner`."""

    def __init__(
        self,
        launches: Launches,
        buffers: StepBuffers,
        stream: Stream,
        graphs: Graphs,
        device: torch.device,
        laps: Callable[[], Laps],
        aside: Callable[[Launch], None],
        grid: Grid = USUAL,
    ) -> None:
        """aside: runs copies that need not wait for what the stream is doing. grid: which shape a step
        runs in.
        """
        self._launches = launches
        self._buffers = buffers
        self._stream = stream
        self._graphs = graphs
        self._laps = laps
        self._pinned = device.type == "cuda"
        self._grid = grid
        self._rows = Ring(IN_FLIGHT, buffers.described.numel(), device)
        self._results = Ring(IN_FLIGHT, buffers.results_size, device)
        self._drafts = Ring(IN_FLIGHT, buffers.results_size, device)
        self._aside = aside
        self._masked = False  # the device's masks are not those of a step in which all is free

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of those who may write a row's drafts; `Outcome.sources` are indices into it."""
        return self._launches.sources

    @property
    def row_sizes(self) -> Mapping[int, Sequence[int]]:
        """Numbers of rows that steps without prompts are padded to, by K."""
        return {k: self._grid.rows.get(k + 1, ROWS) for k in DRAFTS}

    def attention(self, shapes: Iterable[StepShape]) -> Iterator[Attention]:
        """Attention of the target's passes in these shapes."""
        for shape in shapes:
            yield self._launches.attend(self._buffers.of(shape).batch, shape.queries, shape.mixed)

    def capture(self, shapes: Iterable[StepShape], progress: Callable[[int], None]) -> None:
        """Record the launches of these shapes, largest first. progress: told how many shapes are done.

        The work runs for real, over padding rows alone: they own nothing.
        """
        for done, shape in enumerate(sorted(shapes, reverse=True), start=1):
            self._launch(partial(self._capture, shape))
            self._stream.record().wait()
            progress(done)

    def _capture(self, shape: StepShape) -> None:
        views = self._buffers.of(shape)
        views.rows.packed.zero_()
        views.rows.slots.fill_(self._launches.spare_slot)
        for key, work in self._launches.recorded(shape, views):
            self._graphs.capture(key, work)

    def draft(self, step: Step) -> Flight:
        """Launch the rows' descriptions, the slots' new values and, where the plan wants any, the drafts."""
        shape = self._grid.of(step)
        flight = Flight(step, shape, self._rows.turn(), self._results, self._drafts, self._laps())
        describe(step, self._rows.array(flight.place), shape.rows, self._launches.spare_slot)
        self._launch(lambda: self._draft(flight))
        if step.masked and shape.drafts:
            flight.proposed = self._stream.record()
        return flight

    def _draft(self, flight: Flight) -> None:
        step, shape, drafter = flight.step, flight.shape, self._launches.drafter
        flight.laps.mark()
        self._rows.upload(flight.place, 4 * shape.rows, self._buffers.described)
        self._launches.enter(step)
        if any(row.drafts for row in step.rows):
            drafter.catch_up(step)
            views = self._buffers.of(shape)
            self._run(self._launches.draft(shape, views, drafter.width(step)))
            if step.masked:
                self._run(self._launches.write_over(shape, views))
                self._drafts.download(flight.place, views.drafts.tokens.view(-1), views.drafts.counts)
        flight.laps.mark()

    def _run(self, keyed: Keyed) -> None:
        self._graphs.run(*keyed)

    def forward(self, flight: Flight) -> None:
        """Launch the target's pass over known tokens and drafts."""
        self._launch(lambda: self._forward(flight))

    def _forward(self, flight: Flight) -> None:
        step, shape = flight.step, flight.shape
        views = self._buffers.of(shape)
        if any(row.prompt_logprobs >= 0 for row in step.rows):
            hidden = self._launches.run_forward(shape, views)
            model, state = self._launches.model, self._launches.state
            flight.scores.take_prompts(step, views.batch, hidden.final, state, model.logits)
        else:
            self._run(self._launches.forward(shape, views))
        flight.laps.mark()

    def sheet(self, flight: Flight) -> MaskSheet:
        """Room for the masks of a masked step."""
        rows, queries = flight.shape.rows, flight.shape.queries
        masks, sizes = len(flight.step.masked) * queries, self._buffers.sizes
        flight.host_masks = HostMasks.blank(masks, sizes.words, rows, queries, sizes.forced, self._pinned)
        return flight.host_masks.sheet

    def accept(self, flight: Flight, sheet: MaskSheet = NO_MASKS) -> None:
        """Launch sampling and verification, and the copy of what the host will read.

        sheet: the flight's own; ranks that follow draw nothing and have none.
        """
        self._launch(lambda: self._accept(flight, sheet))
        flight.settled = self._stream.record()

    def _accept(self, flight: Flight, sheet: MaskSheet) -> None:
        step, launches = flight.step, self._launches
        views = self._buffers.of(flight.shape)
        rules: Rules = "full" if step.masked else launches.sampling.rules(row.slot for row in step.rows)
        self._mask(flight, sheet, views)
        if any(row.logprobs >= 0 and row.emits for row in step.rows):
            flight.scores.take(step, views, launches.run_accept(views, rules))
        else:
            self._run(launches.accept(flight.shape, views, rules))
        if sheet.masked and launches.forced.longest:
            self._run(launches.keep(flight.shape, views))
        self._results.download(flight.place, views.results)
        flight.laps.mark()

    def _mask(self, flight: Flight, sheet: MaskSheet, views: StepViews) -> None:
        """Have the device see the flight's masks and no others, and offer no draft that is not legal.

        The masks of the step before are not read any more: the host wrote these ones when it had that step's results.
        """
        if sheet.masked:
            self._aside(lambda: flight.host_masks.upload(views.masks.bits, views.lines, views.forced))
            torch.minimum(views.drafts.counts, views.legal, out=views.drafts.counts)
        elif self._masked:
            self._buffers.unmask()
        self._masked = sheet.masked

    def absorb(self, flight: Flight) -> None:
        """Launch what the drafter reads of prompts at once; what it keeps of every step is part of accepting."""
        self._launch(lambda: self._absorb(flight))

    def _absorb(self, flight: Flight) -> None:
        views = self._buffers.of(flight.shape)
        self._launches.drafter.extend(flight.step, views.batch, views.taps)
        flight.laps.mark()

    def recover(self) -> None:
        """Accept launches again. Whatever slots held is lost; admissions set them anew."""
        self._stream.clear_error()
        self._masked = True  # what failed may have been between the masks' arrival and the note of it

    def close(self) -> None:
        """Let go of what was recorded. The stream is still open."""
        self._graphs.clear()

    def _launch(self, work: Callable[[], None]) -> None:
        def launched() -> None:
            with torch.inference_mode():
                work()

        self._stream.launch(launched)
