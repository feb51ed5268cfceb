"""Time of drafting on a CUDA device, by rows, as replays of a CUDA graph: an EAGLE-3 head of the 8B shape, and copies.

    PYTHONPATH=src python benchmarks/gpu_drafting.py [--rows 1,8,64,250] [--context 1024] [--dtype bfloat16]

Prints microseconds per call: the median of five batches of replays. `propose K (w)` drafts K tokens per row and has
room for w pairs of each; every call finds w pairs of each row to read. `plan`, `note`, `feed`, `keep` are the launches
around the head's passes, `copies` the search of texts of two lengths without a match and with many. `prompt` is what
reading a prompt's chunk takes in all, and what the host needs to launch it, which is not recorded. Takes under a
minute, compiling included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.device import Attending
from overdrive.device.cuda.sampling import CudaSampler
from overdrive.device.cuda.sampling_state import StaticSamplingState
from overdrive.device.cuda.steps import StepRows
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.draft.copies_kernels import copy_runs
from overdrive.draft.eagle3.loading import dummy_head
from overdrive.draft.eagle3.network import EagleHead
from overdrive.draft.eagle3.padded import PaddedEagleDrafter
from overdrive.draft.eagle3.slots import HeadSlots
from overdrive.draft.eagle3.step_kernels import keep, note_pairs, plan_drafts, plan_pairs
from overdrive.draft.eagle3.steps import Wanted
from overdrive.draft.padded import PaddedDrafts, PaddedRoom
from overdrive.model.dummy import tiny_config
from overdrive.model.forms import cuda_form
from overdrive.model.rope import RopeConfig
from overdrive.types import Admission, Plan, Row, SamplingParams, Step, Why
from shared import replayed_us

DEVICE = torch.device("cuda")
MAX_MODEL_LEN, PAGE, WINDOW = 8192, 16, 256
PROPOSALS = ((1, 2), (2, 4), (3, 4), (5, 8), (7, 8))
CHUNKS = (256, 2048)


def launched_us(work: Callable[[], object]) -> tuple[float, float]:
    """Microseconds until a call's launches are done, and until they are launched."""
    whole, host = [], []
    for _ in range(8):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        host.append(time.perf_counter() - started)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - started)
    return statistics.median(whole[3:]) * 1e6, statistics.median(host[3:]) * 1e6


def head_of(precision: str) -> EagleHead:
    """A head of one layer for a target of the 8B shape, of which it needs the embedding alone."""
    shape = {"hidden": 4096, "mlp": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128}
    rope = RopeConfig(theta=500000.0)
    config = tiny_config(vocab=128256, max_positions=MAX_MODEL_LEN, rope=rope, **shape)
    form = cuda_form(cast(Any, precision), DEVICE)
    embedding = torch.randn((config.vocab, config.hidden), device=DEVICE, dtype=form.dtype)
    target = SimpleNamespace(config=config, embedding=embedding, max_model_len=MAX_MODEL_LEN)
    return dummy_head(cast(Any, target), form, 0, lambda label, done, total: None)


class Bed:
    """A drafter over so many rows, which share pages where there are too many."""

    def __init__(self, rows: int, head: EagleHead) -> None:
        self.state = SlotState(rows + 1, MAX_MODEL_LEN, PAGE, DEVICE)
        columns = self.state.page_table.shape[1]
        self.n_pages = 1 + min(rows * columns, 12000)
        pages = torch.arange(rows * columns, device=DEVICE, dtype=torch.int32) % (self.n_pages - 1) + 1
        self.state.page_table[:-1] = pages.view(rows, columns)
        self.state.history.copy_(torch.randint(0, 1000, self.state.history.shape, device=DEVICE))
        vocab = head.config.vocab
        sampling = StaticSamplingState(rows + 1, vocab, torch.float32, DEVICE)
        params = SamplingParams(max_tokens=64, temperature=0.0)
        sampling.admit_all([Admission("r", slot, (1, 2), 2, 0, params) for slot in range(rows)])
        sampler = CudaSampler(rows, vocab, DEVICE)

        def draw(logits: Tensor, layout: Layout, drafts: Tensor, ids: Tensor, out: Tensor) -> None:
            sampler.draw(logits, layout, drafts, sampling, "noisy", ids, out)

        self.drafter = PaddedEagleDrafter(
            head, WINDOW, PaddedRoom(DEVICE, self.state, sampling, self.n_pages, draw, Attending())
        )

    def rows(self, drafts: int) -> tuple[StepRows, PaddedDrafts]:
        count = len(self.state.lengths) - 1
        lines = [torch.arange(count), *(torch.full((count,), value) for value in (1, drafts, 1))]
        rows = StepRows(torch.stack(lines).to(DEVICE))
        zeros = torch.zeros((max(drafts, 1) + 2, count), dtype=torch.int64, device=DEVICE)
        return rows, PaddedDrafts(zeros[2:].view(count, -1), zeros[0], zeros[1])

    def begin(self, context: int) -> None:
        """Every row has so many positions and a newest token, and the head has read all but that one's pair."""
        self.state.computed[:-1] = context
        self.state.lengths[:-1] = context + 1
        self.drafter._slots.stops.fill_(context)

    def grow(self, by: int) -> None:
        """Every row becomes longer, as if so many tokens had been accepted."""
        self.state.computed[:-1].add_(by)
        self.state.lengths[:-1].add_(by)


def proposals(bed: Bed, context: int) -> dict[str, float]:
    times = {}
    for drafts, width in PROPOSALS:
        rows, out = bed.rows(drafts)

        def work(rows: StepRows = rows, out: PaddedDrafts = out, width: int = width) -> None:
            bed.grow(width)
            bed.drafter.propose(rows, out, width)

        bed.begin(context)
        times[f"propose {drafts} ({width})"] = replayed_us(work, calls=2) - replayed_us(
            lambda width=width: bed.grow(0 * width), calls=2
        )
    return times


def launches(bed: Bed, head: EagleHead) -> dict[str, float]:
    """The drafter's own kernels at K = 3, and keeping at K = 0."""
    bed.begin(1024)
    rows, out = bed.rows(3)
    count, config = len(rows.slots), head.config
    width = len(config.taps) * config.target_hidden
    slots = HeadSlots.allocate(bed.state, WINDOW, bed.n_pages, width, True, head.dtype)
    firsts = torch.ones(count, dtype=torch.int64, device=DEVICE)
    slots.stops.copy_(bed.state.computed - 2)
    wanted = Wanted(rows.slots, rows.drafts, newest=True, tokens=4 * count)
    one = plan_pairs(bed.state, slots, Wanted(rows.slots, rows.drafts, newest=True, tokens=count), firsts).batch
    taps = torch.zeros((count, width), dtype=head.dtype, device=DEVICE)
    ones = torch.ones(count, dtype=torch.int64, device=DEVICE)
    return {
        "plan (4)": replayed_us(lambda: plan_pairs(bed.state, slots, wanted, firsts), calls=2),
        "note (4)": replayed_us(lambda: note_pairs(bed.state, slots, wanted, out), calls=2),
        "feed": replayed_us(lambda: plan_drafts(bed.state, rows, out, 1), calls=2),
        "keep": replayed_us(lambda: keep(bed.state, slots, rows, one, taps, ones), calls=2),
    }


def copies(bed: Bed) -> dict[str, float]:
    times, state = {}, bed.state
    rows, out = bed.rows(3)
    for length in (1024, MAX_MODEL_LEN):
        state.lengths[:-1] = length
        state.history.copy_(torch.arange(state.history.shape[1], device=DEVICE))
        times[f"copies {length}"] = replayed_us(lambda: copy_runs(state, rows, out, 9, 1), calls=2)
        state.history.copy_(torch.arange(state.history.shape[1], device=DEVICE) % 40)
        times[f"copies {length}, many"] = replayed_us(lambda: copy_runs(state, rows, out, 9, 1), calls=2)
    return times


def prompts(bed: Bed, head: EagleHead) -> dict[str, float]:
    """A chunk of one row's prompt."""
    times, width = {}, len(head.config.taps) * head.config.target_hidden
    for chunk in CHUNKS:
        positions = torch.arange(chunk, device=DEVICE)
        zeros = torch.zeros(chunk, dtype=torch.int64, device=DEVICE)
        offsets = torch.tensor([0, chunk], device=DEVICE)
        table = bed.state.page_table[:1]
        writes = table[0, positions // PAGE] * PAGE + positions % PAGE
        batch = Batch(zeros, positions, zeros, offsets, table, zeros[:1], zeros[:2].view(1, 2), writes, zeros[:1])
        taps = torch.zeros((chunk, width), dtype=head.dtype, device=DEVICE)
        bed.state.computed[0], bed.state.lengths[0] = chunk, chunk + 1
        admission = Admission("r", 0, (1,) * chunk, chunk, 0, SamplingParams(max_tokens=1))
        row = Row("r", 0, chunk, 0, True, chunk)
        step = Step(1, (row,), Plan(0, Why("benchmark")), (admission,))

        def work(step: Step = step, batch: Batch = batch, taps: Tensor = taps) -> None:
            bed.drafter.entered(step)
            bed.drafter.extend(step, batch, taps)

        times[f"prompt of {chunk}"], times[f"prompt of {chunk}, host"] = launched_us(work)
    return times


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,64,250")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    options = parser.parse_args()
    head, columns = head_of(options.dtype), {}
    for rows in (int(count) for count in options.rows.split(",")):
        bed = Bed(rows, head)
        columns[rows] = proposals(bed, options.context) | launches(bed, head) | copies(bed) | prompts(bed, head)
    print(f"{torch.cuda.get_device_name()}, {options.dtype}, context {options.context}, us per call")
    print(f"{'rows':<22}" + "".join(f"{rows:>10}" for rows in columns))
    for name in next(iter(columns.values())):
        print(f"{name:<22}" + "".join(f"{column[name]:>10.1f}" for column in columns.values()))


if __name__ == "__main__":
    main()
