"""Host time of one step without a device: schedule, build, commit and the message that leaves the engine process.

Run: PYTHONPATH=src python benchmarks/host.py [--steps 300]
The device is replaced by one that answers at once with random accepted counts, so nothing but host work is timed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import msgspec
import numpy as np

from overdrive.commit import Committer
from overdrive.engine_process import as_message
from overdrive.grammar.sheet import NO_MASKS, MaskSheet
from overdrive.limits import Limits
from overdrive.loop import Loop
from overdrive.memory.pages import PagePool
from overdrive.memory.prefix import PrefixCache
from overdrive.policy.acceptance import DraftCounts
from overdrive.policy.controller import FixedDrafts
from overdrive.request import Request
from overdrive.scheduler import Scheduler
from overdrive.types import Outcome, SamplingParams, Step
from overdrive.wire import Batch

PROMPT = 256
VOCAB = 49152


class InstantFlight:
    def __init__(self, step: Step, rng: np.random.Generator) -> None:
        self.step = step
        drafts = np.array([row.drafts for row in step.rows])
        emits = np.array([row.emits for row in step.rows])
        self._outcome = Outcome(
            tokens=rng.integers(1, VOCAB, (len(drafts), int(drafts.max(initial=0)) + 1)),
            counts=rng.integers(0, drafts + 1) * emits + emits,
            offered=drafts,
            sources=np.zeros_like(drafts),
        )

    def drafted(self) -> list[list[int]]:
        raise NotImplementedError("no row of this benchmark is constrained")

    def wait(self) -> Outcome:
        return self._outcome


class InstantRunner:
    """A device that takes no time."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.spent = 0.0

    def draft(self, step: Step) -> InstantFlight:
        started = time.perf_counter()
        flight = InstantFlight(step, self._rng)
        self.spent += time.perf_counter() - started
        return flight

    def forward(self, flight: InstantFlight) -> None: ...

    def sheet(self, flight: InstantFlight) -> MaskSheet:
        raise NotImplementedError("no row of this benchmark is constrained")

    def accept(self, flight: InstantFlight, sheet: MaskSheet = NO_MASKS) -> None: ...

    def absorb(self, flight: InstantFlight) -> None: ...

    def recover(self) -> None: ...


def measure(rows: int, drafts: int, steps: int) -> list[float]:
    """Seconds of each steady step with `rows` decoding rows."""
    page = 16
    pool = PagePool(rows * (PROMPT + steps * (drafts + 1) + 64) // page + 2)
    limits = Limits(
        max_rows=rows, max_step_tokens=1 << 20, chunk=PROMPT, max_queue=rows, max_model_len=1 << 20, page_size=page
    )
    scheduler = Scheduler(limits, pool, PrefixCache(pool, page))
    runner = InstantRunner()
    loop = Loop(
        scheduler, FixedDrafts(drafts), runner, Committer(scheduler, DraftCounts(("none",), drafts)), lookahead=1
    )
    rng = np.random.default_rng(1)
    for i in range(rows):
        params = SamplingParams(max_tokens=steps * (drafts + 1) + 32, stop_token_ids=(0,))
        scheduler.submit(Request(f"r{i}", tuple(rng.integers(1, VOCAB, PROMPT).tolist()), params, i))
    encoder, times = msgspec.msgpack.Encoder(), []
    for step in range(steps):
        runner.spent = 0.0
        started = time.perf_counter()
        deltas = loop.advance()
        encoder.encode(Batch([as_message(delta) for delta in deltas]))
        if step > 5:  # the first hold the prompts
            times.append(time.perf_counter() - started - runner.spent)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    print(f"{'rows':>6} {'K':>3} {'median ms':>10} {'p95 ms':>8} {'us/row':>8}")
    for rows in (1, 64, 256):
        for drafts in (0, 3):
            times = sorted(measure(rows, drafts, steps))
            median, late = statistics.median(times) * 1e3, times[int(len(times) * 0.95)] * 1e3
            print(f"{rows:>6} {drafts:>3} {median:>10.3f} {late:>8.3f} {median / rows * 1e3:>8.1f}")


if __name__ == "__main__":
    main()
