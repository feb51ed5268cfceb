"""Running out of device memory at any launch, before its work or behind it, costs time and never text."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from overdrive.errors import OutOfDeviceMemory
from overdrive.types import FinishReason

from .bench import Bench, StopAndGo
from .lazy import LazyStream
from .padded_engine import choices, padded_bench
from .test_engine_laws import check, random_requests
from .tiny_engine import tiny_bench


class ScarceStream(LazyStream):
    """A lazy stream some of whose launches find no memory: half of them before they did anything, half at their end."""

    def __init__(self, rng: random.Random, share: float) -> None:
        super().__init__(rng)
        self._share = share
        self.failed = 0

    def launch(self, work: Callable[[], None]) -> None:
        if self._rng.random() >= self._share:
            super().launch(work)
            return
        self.failed += 1
        late = self._rng.random() < 0.5

        def scarce() -> None:
            if late:
                work()
            raise OutOfDeviceMemory("no memory")

        super().launch(scarce)


def run(rng: random.Random, stream: ScarceStream, padded: bool) -> Bench:
    """An engine that has served; those it had to give up ran alone, where fewer at once cannot help."""
    choice = rng.choice(list(choices().values()))
    bounds = {"n_pages": rng.choice([30, 120]), "chunk": rng.choice([5, 16]), "lookahead": rng.choice([0, 1])}
    if padded:
        b = padded_bench(stream, StopAndGo(rng), choice, **bounds)
    else:
        b = tiny_bench(stream, StopAndGo(rng), choice.open, **bounds)
    requests = random_requests(rng, 5)
    for request in requests:
        b.scheduler.submit(request)
    b.run()
    assert all(len(b.finishes[request.id]) == 1 for request in requests)
    check(b, [request for request in requests if b.finishes[request.id][0].reason is not FinishReason.ERROR])
    return b


@pytest.mark.parametrize("padded", [False, True], ids=["cpu", "padded"])
def test_text_does_not_depend_on_where_memory_runs_out(padded: bool) -> None:
    failed = preempted = 0
    for seed in range(8):
        rng = random.Random(seed)
        stream = ScarceStream(rng, 0.02)
        preempted += run(rng, stream, padded).scheduler.preemptions
        failed += stream.failed
    assert failed >= 8 and preempted >= 8
