"""A target model without tensors: the next token is a hash of the tokens that stand in the row's pages.

It reads tokens back from pages, as attention reads keys, so a wrong page, a page given away too early or a bound that
is too small changes the text or trips an assertion. `oracle` is the same model one token at a time, without pages.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from overdrive.errors import OutOfDeviceMemory
from overdrive.grammar.sheet import NO_MASKS, MaskSheet
from overdrive.text.stops import StopHit
from overdrive.types import Finish, FinishReason, Outcome, SamplingParams, Step

VOCAB = 11
EOS = 0


def next_token(prefix: Sequence[int], seed: int) -> int:
    h = 7 + seed
    for token in prefix:
        h = (h * 31 + token + 1) % 1000003
    token = (h * 2654435761 >> 7) % VOCAB
    return token if token != EOS or h % 5 == 0 else 1 + h % (VOCAB - 1)


class ByteStops:
    """The plainest stop watch: token t is the byte t. Of stops that end together the longest counts."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._stops = stops
        self._text = b""

    def push(self, token: int) -> StopHit | None:
        self._text += bytes([token])
        hits = [StopHit(i, len(s)) for i, s in enumerate(self._stops) if self._text.endswith(s)]
        return max(hits, key=lambda hit: hit.back, default=None)


def oracle(prompt: Sequence[int], params: SamplingParams) -> tuple[list[int], Finish]:
    tokens, stops = list(prompt), ByteStops(params.stop)
    while True:
        token = next_token(tokens, params.seed)
        tokens.append(token)
        matched, output_len = stops.push(token), len(tokens) - len(prompt)
        if token in params.stop_token_ids:
            return tokens[len(prompt) :], Finish(FinishReason.STOP, stop_token=token)
        if matched is not None and output_len >= params.min_tokens:
            return tokens[len(prompt) :], Finish(FinishReason.STOP, stop_string=matched.stop)
        if output_len >= params.max_tokens:
            return tokens[len(prompt) :], Finish(FinishReason.LENGTH)


def source_of(drafts: Sequence[int]) -> int:
    """Who wrote a row's drafts, of two: any rule does that differs from row to row."""
    return len(drafts) % 2


class ToyFlight:
    def __init__(self, step: Step) -> None:
        self.step = step
        self.drafts: dict[int, list[int]] = {}
        self.reads: dict[int, list[list[int]]] = {}
        self.outcome: Outcome | None = None  # poison until the event
        self.event = None

    def drafted(self) -> list[list[int]]:
        return list(self.drafts.values())

    def wait(self) -> Outcome:
        self.event.wait()
        assert self.outcome is not None
        return self.outcome


class ToyRunner:
    """Implements overdrive.loop.Runner with lists for device memory."""

    sources = ("even", "odd")

    def __init__(self, stream, rng: random.Random, slots: int, n_pages: int, page_size: int, fail_at: int = 0) -> None:
        """fail_at: the step whose pass fails. fits: most rows of a pass, beyond which memory does not last.

        poison: the request with which every pass fails. lost: from the first failure on, all fail.
        """
        self.fits = slots
        self.poison = ""
        self.lost = False
        self.stream, self.rng, self.page_size = stream, rng, page_size
        self.kv = [[None] * page_size for _ in range(n_pages)]
        self.history: list[list[int]] = [[] for _ in range(slots)]
        self.computed = [0] * slots
        self.seeds = [0] * slots
        self.table: list[dict[int, int]] = [{} for _ in range(slots)]
        self.fail_at = fail_at
        self.fed_tokens = 0
        self.rounds: dict[str, list[tuple[int, int, int]]] = {}  # by request: (source, offered, accepted) of its rows

    def draft(self, step: Step) -> ToyFlight:
        flight = ToyFlight(step)
        self.stream.launch(lambda: self._apply(step))
        self.stream.launch(lambda: self._draft(flight))
        return flight

    def _apply(self, step: Step) -> None:
        for admission in step.admissions:
            self.history[admission.slot] = list(admission.tokens)
            self.computed[admission.slot] = admission.computed
            self.seeds[admission.slot] = admission.params.seed
            self.table[admission.slot] = {}
        for entry in step.page_entries:
            assert 0 not in entry.pages, "the scratch page was handed out"
            self.table[entry.slot].update(enumerate(entry.pages, start=entry.first))

    def _draft(self, flight: ToyFlight) -> None:
        for row in flight.step.rows:
            tokens, guesses = list(self.history[row.slot]), []
            for _ in range(self.rng.randint(0, row.drafts)):
                right = self.rng.random() < 0.75
                guesses.append(next_token(tokens, self.seeds[row.slot]) if right else self.rng.randrange(VOCAB))
                tokens.append(guesses[-1])
            flight.drafts[row.slot] = guesses

    def forward(self, flight: ToyFlight) -> None:
        self.stream.launch(lambda: self._forward(flight))

    def _forward(self, flight: ToyFlight) -> None:
        if flight.step.number == self.fail_at or any(row.request_id == self.poison for row in flight.step.rows):
            raise RuntimeError("the device is gone")
        if len(flight.step.rows) > self.fits:
            raise OutOfDeviceMemory("out of memory")
        for row in flight.step.rows:
            start, pages = self.computed[row.slot], self.table[row.slot]
            fed = (self.history[row.slot] + flight.drafts[row.slot])[
                start : start + row.known + len(flight.drafts[row.slot])
            ]
            self.fed_tokens += len(fed)
            assert start + len(fed) <= row.upper_len, "a row wrote past its bound"
            for position, token in enumerate(fed, start=start):
                page = pages.get(position // self.page_size, 0)
                self.kv[page][position % self.page_size] = token
            flight.reads[row.slot] = [
                [self.kv[pages.get(p // self.page_size, 0)][p % self.page_size] for p in range(end)]
                for end in range(start + row.known, start + len(fed) + 1)
            ]

    def sheet(self, flight: ToyFlight) -> MaskSheet:
        raise AssertionError("no row of the toy is constrained")

    def accept(self, flight: ToyFlight, sheet: MaskSheet = NO_MASKS) -> None:
        self.stream.launch(lambda: self._accept(flight))
        flight.event = self.stream.record()

    def _accept(self, flight: ToyFlight) -> None:
        rows = flight.step.rows
        width = max([row.drafts for row in rows], default=0) + 1
        tokens, counts, offered = np.zeros((len(rows), width), np.int64), [], []
        for index, row in enumerate(rows):
            found: list[int] = []
            drafts = flight.drafts[row.slot]
            for depth, prefix in enumerate(flight.reads[row.slot] if row.emits else []):
                if None in prefix:  # only past the request's own end, on the scratch page
                    found.append(1)
                else:
                    found.append(next_token(prefix, self.seeds[row.slot]))
                if depth == len(drafts) or found[-1] != drafts[depth]:
                    break
            tokens[index, : len(found)] = found
            counts.append(len(found))
            offered.append(len(drafts))
            if found:
                round_ = (source_of(drafts), len(drafts), len(found) - 1)
                self.rounds.setdefault(row.request_id, []).append(round_)
            self.history[row.slot] += found
            self.computed[row.slot] += row.known + max(len(found) - 1, 0)
        sources = np.array([source_of(flight.drafts[row.slot]) for row in rows])
        flight.outcome = Outcome(tokens, np.array(counts), np.array(offered), sources)

    def absorb(self, flight: ToyFlight) -> None:
        pass

    def recover(self) -> None:
        self.stream.clear_error()
        if self.lost:
            raise RuntimeError("an illegal memory access was encountered")
