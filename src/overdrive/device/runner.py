"""Runs steps on a device: what each launch does, and the order of the launches.

Knows tensors and steps. Must never know requests, queues or how a plan was made: a row is known tokens and drafts,
and nothing here asks whether that is a prompt, plain decoding or a verification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.logprobs import Logprobs, logprobs
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.device.sampling import Layout, Sampler, SamplingState
from overdrive.device.state import SlotState
from overdrive.device.steps import Steps, TorchSteps
from overdrive.device.stream import Event, Stream
from overdrive.device.verify import Imposed, Verified
from overdrive.draft.base import Drafter, Drafts, Fed
from overdrive.draft.forced import ForcedRuns, with_grammar
from overdrive.grammar.base import mask_words
from overdrive.grammar.sheet import NO_MASKS, MaskSheet, SheetRoom
from overdrive.model.transformer import Scored
from overdrive.types import MAX_DRAFTS, Outcome, Row, Step, TopLogprobs

Forward = Callable[[Batch], Scored]
"""The target's pass: stores the batch's keys and values, returns hidden states, the drafter's taps and the wanted
logits, good until the next call."""

SCORE_SLICE = 64
"""Prompt positions whose logits exist at once while prompt log-probabilities are computed."""


class LaunchedStep:
    """A step under way. Its launches fill it in, in order; the host reads it only through `wait`."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step = step
        rows = step.rows
        self.slots = torch.tensor([row.slot for row in rows], device=device)
        self.known = torch.tensor([row.known for row in rows], device=device)
        self.emits = torch.tensor([row.emits for row in rows], device=device)
        nothing = torch.zeros(len(rows), dtype=torch.int64, device=device)
        self.drafts = Drafts(torch.zeros((len(rows), 0), dtype=torch.int64, device=device), nothing, nothing)
        self.seconds = [0.0, 0.0, 0.0, 0.0]
        self.proposed: Event
        self.batch: Batch
        self.layout: Layout
        self.hidden: Scored
        self.verified: Verified
        self.outcome: Outcome
        self.settled: Event

    def drafted(self) -> list[list[int]]:
        """The drafts of each row, once they are written. Raises StreamError when a launch failed."""
        self.proposed.wait()
        tokens, counts, _ = self.drafts
        if not tokens.shape[1]:
            return [[]] * len(tokens)
        return [line[:count] for line, count in zip(tokens.tolist(), counts.tolist(), strict=True)]

    def wait(self) -> Outcome:
        """The step's results. Raises StreamError when a launch failed."""
        self.settled.wait()
        draft, forward, accept, absorb = self.seconds
        return replace(self.outcome, seconds=(draft, forward, accept, absorb))


class Runner:
    """Owns the device state and runs steps on it. Implements `overdrive.loop.Runner`."""

    def __init__(
        self,
        forward: Forward,
        logits: Callable[[Tensor], Tensor],
        state: SlotState,
        sampling: SamplingState,
        sampler: Sampler,
        drafter: Drafter,
        stream: Stream,
        steps: Steps = TorchSteps(),
        ranks: Ranks = ALONE,
        imposed: Imposed | None = None,
        most_drafts: int = MAX_DRAFTS,
        ahead: bool = True,
    ) -> None:
        """logits: the target's head, hidden states [N, H] to [N, V], for tokens that the pass does not score.

        ranks: those who run every step together. Drafts and verdicts are rank 0's; what the drafter and the sampler of
        another rank say is replaced by them. imposed: replaces the comparison of drafts and draws, for measurements.
        most_drafts: of a row, 0 where nobody drafts. ahead: what certainly follows is told before it is known what is
        drawn; else every step says what follows.
        """
        self._target = forward
        self._logits = logits
        self._state = state
        self._sampling = sampling
        self._sampler = sampler
        self._drafter = drafter
        self._stream = stream
        self._steps = steps
        self._ranks = ranks
        self._imposed = imposed
        self._forced = ForcedRuns(len(state.lengths), most_drafts, state.history.device)
        self._ahead = ahead
        self._sheets = SheetRoom(mask_words(sampling.vocab_size))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of those who may write a row's drafts; `Outcome.sources` are indices into it."""
        return with_grammar(self._drafter.sources)

    @property
    def row_sizes(self) -> Mapping[int, Sequence[int]]:
        """Rows are not padded."""
        return {}

    def draft(self, step: Step) -> LaunchedStep:
        """Launch the slots' new values and, where the plan wants any, the drafts."""
        launched = LaunchedStep(step, self._state.history.device)
        if step.admissions or step.page_entries:
            self._stream.launch(lambda: self._enter(step))
        if any(row.drafts for row in step.rows):
            self._launch(launched, 0, self._draft)
        if step.masked:
            launched.proposed = self._stream.record()
        return launched

    def forward(self, launched: LaunchedStep) -> None:
        """Launch the target's pass over known tokens and drafts."""
        self._launch(launched, 1, self._forward)

    def sheet(self, launched: LaunchedStep) -> MaskSheet:
        """Room for the masks of a masked step, good until the next call: all steps before that one have run by then."""
        step = launched.step
        drafts = max(row.drafts for row in step.rows) if step.plan.drafts else 0
        forced = self._forced.shape if self._ahead and step.plan.drafts else (0, 0)
        return self._sheets.sheet(len(step.masked), len(step.rows), drafts + 1, forced)

    def accept(self, launched: LaunchedStep, sheet: MaskSheet = NO_MASKS) -> None:
        """Launch sampling and verification, and the copy of what the host will read."""
        self._launch(launched, 2, lambda launched: self._accept(launched, sheet))
        launched.settled = self._stream.record()

    def absorb(self, launched: LaunchedStep) -> None:
        """Launch what the drafter keeps of the step."""
        self._launch(launched, 3, self._absorb)

    def recover(self) -> None:
        """Accept launches again. Whatever slots held is lost; admissions set them anew."""
        self._stream.clear_error()

    def close(self) -> None:
        """Nothing outlives the stream."""

    def _launch(self, launched: LaunchedStep, phase: int, work: Callable[[LaunchedStep], None]) -> None:
        def timed() -> None:
            started = time.perf_counter()
            with torch.inference_mode():
                work(launched)
            launched.seconds[phase] = time.perf_counter() - started

        self._stream.launch(timed)

    def _enter(self, step: Step) -> None:
        with torch.inference_mode():
            for admission in step.admissions:
                self._state.admit(admission)
                self._sampling.admit(admission.slot, admission.params, admission.tokens, admission.prompt_len)
                self._forced.set(admission.slot, ())
            # Exchanged pages first: what they replace is still whole, and may be given out anew in this very step.
            for entry in sorted(step.page_entries, key=lambda entry: not entry.shared):
                self._drafter.enter(entry)
                self._state.enter(entry)
            for admission in step.admissions:
                self._drafter.admit(admission.slot, admission.tokens, admission.computed)

    def _draft(self, launched: LaunchedStep) -> None:
        caps = torch.tensor([row.drafts for row in launched.step.rows], device=launched.slots.device)
        width = max(row.drafts for row in launched.step.rows)
        launched.drafts = self._drafter.propose(launched.slots, caps, width)
        if launched.step.masked:
            self._write_certain(launched, caps)
        self._ranks.share(launched.drafts.tokens, launched.drafts.counts)

    def _write_certain(self, launched: LaunchedStep, caps: Tensor) -> None:
        """Put what certainly follows among the drafts. caps: [R], most drafts of each row."""
        told = [row for row in launched.step.rows if row.forced]
        for row in told:
            self._forced.set(row.slot, row.forced)
        if told or self._ahead:
            self._forced.write_over(launched.slots, caps, *launched.drafts, source=len(self.sources) - 1)
        if not self._ahead:  # the next step says anew what follows
            for row in told:
                self._forced.set(row.slot, ())

    def _forward(self, launched: LaunchedStep) -> None:
        tokens, counts, _ = launched.drafts
        upper_len = max(row.upper_len for row in launched.step.rows)
        launched.batch, launched.layout = self._steps.flatten(
            self._state, launched.slots, launched.known, launched.emits, tokens, counts, upper_len
        )
        launched.hidden = self._target(launched.batch)

    def _accept(self, launched: LaunchedStep, sheet: MaskSheet) -> None:
        tokens, counts, sources = launched.drafts
        logits, masks = launched.hidden.logits, None
        if sheet.masked:
            masks = self._steps.masks(sheet, launched.layout)
            if tokens.shape[1]:
                counts = torch.minimum(counts, torch.from_numpy(sheet.legal).to(counts.device))
        drawn = self._sampler(logits, launched.layout, tokens, self._sampling, masks)
        done = self._steps.agree(drawn, launched.layout, tokens, counts, self._imposed)
        self._ranks.share(done.tokens, done.counts)
        launched.verified = done
        scores = self._prompt_scores(launched)
        self._steps.advance(self._state, launched.slots, launched.known, done.tokens, done.counts)
        self._sampling.absorb(launched.slots, done.tokens, done.counts)
        if sheet.masked and self._ahead:
            self._keep_certain(launched, sheet)
        launched.outcome = Outcome(
            tokens=done.tokens.cpu().numpy(),
            counts=done.counts.cpu().numpy(),
            offered=counts.cpu().numpy(),
            sources=sources.cpu().numpy(),
            logprobs=self._scores(launched, logits),
            prompt_logprobs=scores,
        )

    def _keep_certain(self, launched: LaunchedStep, sheet: MaskSheet) -> None:
        """Remember what follows the newest tokens, as far as the sheet says."""
        if sheet.forced.size:
            done, forced = launched.verified, torch.from_numpy(sheet.forced).to(launched.slots.device)
            self._forced.keep(launched.slots, forced, done.tokens, done.counts)
        else:
            self._forced.forget(launched.slots)

    def _absorb(self, launched: LaunchedStep) -> None:
        done, step = launched.verified, launched.step
        self._drafter.absorb(
            Fed(launched.batch, launched.slots, launched.known, done.tokens, done.counts, launched.hidden.taps)
        )
        chunks = [row.slot for row in step.rows if row.known > 1 or not row.emits]
        if chunks:
            self._drafter.extend(torch.tensor(chunks, device=launched.slots.device), step.plan.drafts)

    def _scores(self, launched: LaunchedStep, logits: Tensor) -> dict[int, TopLogprobs]:
        """Log-probabilities of the new tokens of rows that asked, by row."""
        wants = {index: row.logprobs for index, row in enumerate(launched.step.rows) if row.logprobs >= 0 and row.emits}
        if not wants:
            return {}
        layout, done = launched.layout, launched.verified
        scores = {}
        for index, n in wants.items():
            places = ((layout.rows == index) & (layout.depths < done.counts[index])).nonzero().squeeze(1)
            tokens = done.tokens[index, layout.depths[places]]
            scores[index] = _on_host(logprobs(logits[places], tokens, n))
        return scores

    def _prompt_scores(self, launched: LaunchedStep) -> dict[int, TopLogprobs]:
        """Log-probabilities of the prompt tokens that this step's known positions predict, by row."""
        scores = {}
        for index, row in enumerate(launched.step.rows):
            if row.prompt_logprobs >= 0:
                found = self._score_row(launched, index, row)
                if found:
                    scores[index] = _joined(found)
        return scores

    def _score_row(self, launched: LaunchedStep, index: int, row: Row) -> list[TopLogprobs]:
        """Slice by slice, so that the logits of a long chunk never exist at once."""
        begin, start = int(launched.batch.offsets[index]), int(self._state.computed[row.slot])
        count = min(row.known, int(self._state.lengths[row.slot]) - 1 - start)
        following = self._state.history[row.slot, start + 1 : start + 1 + count].long()
        found = []
        for at in range(0, count, SCORE_SLICE):
            hidden = launched.hidden.final[begin + at : begin + min(at + SCORE_SLICE, count)]
            part = following[at : at + SCORE_SLICE]
            found.append(_on_host(logprobs(self._logits(hidden), part, row.prompt_logprobs)))
        return found


def _on_host(scores: Logprobs) -> TopLogprobs:
    parts = (scores.chosen, scores.ranks, scores.top_ids, scores.top)
    return TopLogprobs(*(part.cpu().numpy() for part in parts))


def _joined(parts: list[TopLogprobs]) -> TopLogprobs:
    return TopLogprobs(
        np.concatenate([part.chosen for part in parts]),
        np.concatenate([part.ranks for part in parts]),
        np.concatenate([part.top_ids for part in parts]),
        np.concatenate([part.top for part in parts]),
    )
