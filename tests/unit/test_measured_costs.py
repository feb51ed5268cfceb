"""A table of costs against the machine that it was measured on, whose costs are known."""

from __future__ import annotations

import random

import pytest
import torch

from overdrive.device.costs import CostSizes, measure_costs
from overdrive.device.cuda.device import CudaDevice
from overdrive.device.rehearsal import Timed
from overdrive.limits import Limits

PLANS = (1, 3, 7)
MOST = 30
SIZES = CostSizes(
    rows=(1, 2, 4, 8, 16, 24, MOST),
    most_tokens=2048,
    short=256,
    long=2048,
    texts=2,
    long_rows=24,
    seconds=60.0,
    padded=True,
)


class Machine:
    """Weights read in 4 ms; every token 20 us more. Attention waits for loads, longer the more drafts attend, and reads
    memory; drafting attends as well."""

    def fits(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> bool:
        return True

    def read(self, context: int, texts: int) -> None:
        pass

    def decode(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> list[Timed]:
        return [
            Timed(
                rows * (1 + drafts), rows * context, self.draft(rows, drafts, context), self.rest(rows, drafts, context)
            )
        ] * steps

    def rest(self, rows: int, drafts: int, context: int) -> float:
        waiting = (1e-7 + 1e-7 * drafts) * min(context, 2048)
        return 4e-3 + 2e-5 * rows * (1 + drafts) + waiting + 3e-8 * (1 + drafts / 14) * (rows - 1) * context

    def draft(self, rows: int, drafts: int, context: int) -> float:
        return drafts * (2e-4 + 1e-6 * rows + 1e-9 * rows * context)


@pytest.mark.parametrize("k", [0, *PLANS])
@pytest.mark.parametrize("rows", [1, 5, 24, MOST, 40])
@pytest.mark.parametrize("context", [256, 1000, 2048, 8000])
def test_a_measured_table_tells_what_the_machine_takes(rows: int, k: int, context: int) -> None:
    machine = Machine()
    table = measure_costs(machine, SIZES, PLANS, lambda done, total: None).table  # type: ignore[arg-type]
    told = table.plain(rows, k, rows * k, rows * context) + table.draft(k, rows, rows * context)
    assert told == pytest.approx(machine.rest(rows, k, context) + machine.draft(rows, k, context), rel=0.06)


class Small(Machine):
    """Room for one row behind long texts."""

    def fits(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> bool:
        return rows == 1 or context < 2048


def test_where_many_rows_have_no_room_behind_long_texts_nothing_is_made_of_one() -> None:
    table = measure_costs(Small(), SIZES, PLANS, lambda done, total: None).table  # type: ignore[arg-type]
    assert table.decode is None
    assert table.step(8, 0) == table.step(8, 40_000)


@pytest.mark.parametrize("most", [1, 30, 250, 256, 400])
def test_steps_of_the_most_rows_that_there_may_be_are_timed(most: int) -> None:
    limits = Limits(max_rows=most, max_step_tokens=2048, chunk=2048, max_queue=64, max_model_len=4096, page_size=16)
    sizes = CudaDevice(torch.device("cpu")).cost_sizes(limits).rows
    assert sizes[-1] == most and sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))


class Unsteady(Machine):
    """A `share` of the steps takes three times as long; each has a hundredth or two of its own."""

    def __init__(self, share: float) -> None:
        self._share, self._rng = share, random.Random(0)

    def decode(self, rows: int, drafts: int, steps: int, context: int, texts: int) -> list[Timed]:
        found = []
        for timed in super().decode(rows, drafts, steps, context, texts):
            slower = (3 if self._rng.random() < self._share else 1) * self._rng.uniform(1.0, 1.02)
            found.append(Timed(timed.tokens, timed.context, timed.draft * slower, timed.rest * slower))
        return found


@pytest.mark.parametrize(
    ("share", "load", "said"),
    [
        (0.0, 1.0, ""),  # this process alone, on every processor
        (0.1, 0.0, ""),
        (0.5, 0.0, "equal steps took up to 3.0 times as long"),
        (0.0, 2.0, "2.0 processes wanted each of its processors"),
    ],
)
def test_costs_of_a_busy_machine_are_in_doubt(share: float, load: float, said: str) -> None:
    found = measure_costs(Unsteady(share), SIZES, PLANS, lambda done, total: None)  # type: ignore[arg-type]
    doubt = found.doubt(load)
    assert doubt.startswith("step costs were measured on a busy machine: " if said else "")
    assert said in doubt and bool(doubt) == bool(said) and "\n" not in doubt
