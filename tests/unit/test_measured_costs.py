"""A table of costs against the machine that it was measured on, whose costs are known."""

from __future__ import annotations

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
    table = measure_costs(machine, SIZES, PLANS, lambda done, total: None)  # type: ignore[arg-type]
    told = table.plain(rows, k, rows * k, rows * context) + table.draft(k, rows, rows * context)
    assert told == pytest.approx(machine.rest(rows, k, context) + machine.draft(rows, k, context), rel=0.06)


@pytest.mark.parametrize("most", [1, 30, 250, 256, 400])
def test_steps_of_the_most_rows_that_there_may_be_are_timed(most: int) -> None:
    limits = Limits(max_rows=most, max_step_tokens=2048, chunk=2048, max_queue=64, max_model_len=4096, page_size=16)
    sizes = CudaDevice(torch.device("cpu")).cost_sizes(limits).rows
    assert sizes[-1] == most and sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))
