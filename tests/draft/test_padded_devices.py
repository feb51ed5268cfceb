"""The padded EAGLE-3 drafter by itself, fed random features: what it drafts is the same on a GPU, recorded, as here."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from overdrive.device.batch import Batch
from overdrive.device.cuda.device import Attending
from overdrive.device.cuda.sampling import CudaSampler
from overdrive.device.cuda.sampling_state import StaticSamplingState
from overdrive.device.cuda.steps import StepRows
from overdrive.device.sampling import Layout
from overdrive.device.state import SlotState
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.loading import assemble_head, random_tensors
from overdrive.draft.eagle3.padded import PaddedEagleDrafter
from overdrive.draft.lags import WIDTHS
from overdrive.draft.padded import PaddedDrafts, PaddedRoom
from overdrive.model.dummy import random_transformer, tiny_config
from overdrive.model.forms import cuda_form, torch_form
from overdrive.types import Admission, PageEntry, Plan, Row, SamplingParams, Step, Why

SLOTS, PAGE, MAX_LEN, VOCAB, DRAFTS = 3, 16, 256, 64, 3
COLUMNS = 20


def draw_on(device: torch.device, sampling: StaticSamplingState) -> Callable[..., None]:
    sampler = CudaSampler(16, VOCAB, device)

    def draw(logits: Tensor, layout: Layout, drafts: Tensor, ids: Tensor, out: Tensor) -> None:
        sampler.draw(logits, layout, drafts, sampling, "noisy", ids, out)

    return draw


class Bench:
    """A drafter on a device, and the steps around it with random features in the target's place."""

    def __init__(self, device: str, wider: int) -> None:
        self.device = torch.device(device)
        target = random_transformer(tiny_config(vocab=VOCAB, hidden=64, head_dim=32), dtype=torch.float32)
        form = (cuda_form if device == "cuda" else torch_form)("float32", self.device)
        config = HeadConfig.for_target(target.config, draft_vocab=40, taps=(0, 1, 2))
        target.embedding = target.embedding.to(self.device)
        head = assemble_head(config, random_tensors(config, 3), target, form, lambda label, done, total: None)
        self.state = SlotState(SLOTS + 1, MAX_LEN, PAGE, self.device)
        sampling = StaticSamplingState(SLOTS + 1, VOCAB, torch.float32, self.device)
        self.sampling, self.wider = sampling, wider
        draw = draw_on(self.device, sampling)
        room = PaddedRoom(self.device, self.state, sampling, 1 + SLOTS * COLUMNS, draw, Attending())
        self.drafter = PaddedEagleDrafter(head, 64, room)
        self.width = 3 * target.config.hidden
        self.noise = torch.Generator().manual_seed(0)
        self.rows = StepRows(torch.zeros((4, SLOTS + 1), dtype=torch.int64, device=self.device))
        zeros = torch.zeros((DRAFTS + 2, SLOTS + 1), dtype=torch.int64, device=self.device)
        self.drafts = PaddedDrafts(zeros[2:].view(SLOTS + 1, DRAFTS), zeros[0], zeros[1])
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def propose(self, width: int) -> None:
        """On a GPU as a graph, recorded over padding rows alone."""
        if self.device.type == "cpu":
            return self.drafter.propose(self.rows, self.drafts, width)
        if width not in self.graphs:
            described = self.rows.packed.clone()
            self.rows.packed.copy_(torch.tensor([[SLOTS], [0], [0], [0]]))
            self.drafter.propose(self.rows, self.drafts, width)
            graph = self.graphs[width] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.drafter.propose(self.rows, self.drafts, width)
            self.rows.packed.copy_(described)
        return self.graphs[width].replay()

    def run(self, step: Step, tokens: list[list[int]]) -> list[list[int]]:
        """A step whose rows accept these tokens; what was drafted for each of them."""
        count = len(step.rows)
        lines = [(row.slot, row.known, row.drafts, int(row.emits)) for row in step.rows]
        lines += [(SLOTS, 0, 0, 0)] * (SLOTS + 1 - count)
        self.rows.packed.copy_(torch.tensor(lines).T)
        self.drafter.enter(step)
        for admission in step.admissions:
            self.state.admit(admission)
        for entry in step.page_entries:
            self.state.enter(entry)
        self.sampling.admit_all(step.admissions)
        self.drafter.entered(step)
        drafted: list[list[int]] = [[] for _ in step.rows]
        if any(row.drafts for row in step.rows):
            self.drafter.catch_up(step)
            place = min(WIDTHS.index(self.drafter.width(step)) + self.wider, len(WIDTHS) - 1)
            self.propose(WIDTHS[place])
            both = zip(self.drafts.tokens.tolist(), self.drafts.counts.tolist(), strict=True)
            drafted = [row[:n] for row, n in both][:count]
        batch, taps = self.fed(step)
        counts = [len(accepted) for accepted in tokens] + [0] * (SLOTS + 1 - count)
        table = torch.tensor([row + [0] * (DRAFTS + 1 - len(row)) for row in [*tokens, *[[]] * (SLOTS + 1 - count)]])
        for row, accepted in zip(step.rows, tokens, strict=True):
            length = int(self.state.lengths[row.slot])
            self.state.history[row.slot, length : length + len(accepted)] = torch.tensor(accepted, dtype=torch.int32)
            self.state.lengths[row.slot] += len(accepted)
            self.state.computed[row.slot] += row.known + max(len(accepted) - 1, 0)
        self.drafter.absorb(self.rows, batch, taps, table.to(self.device), torch.tensor(counts, device=self.device))
        self.drafter.extend(step, batch, taps)
        return drafted

    def fed(self, step: Step) -> tuple[Batch, Tensor]:
        """The step's padded batch, and random taps."""
        positions, rows, offsets = [], [], [0]
        for index, row in enumerate(step.rows):
            begin = int(self.state.computed[row.slot])
            positions += range(begin, begin + row.known + row.drafts)
            rows += [index] * (row.known + row.drafts)
            offsets.append(len(positions))
        spare = 5
        at = torch.tensor(positions + [0] * spare, device=self.device)
        of = torch.tensor(rows + [SLOTS] * spare, device=self.device)
        slots = self.rows.slots[of]
        live = torch.arange(len(at), device=self.device) < len(positions)
        writes = torch.where(live, self.state.page_table[slots, at // PAGE] * PAGE + at % PAGE, 0)
        ends = offsets + offsets[-1:] * (SLOTS + 2 - len(offsets))
        zeros = torch.zeros(2 * SLOTS + 2, dtype=torch.int64, device=self.device)
        batch = Batch(
            ids=torch.zeros_like(at),
            positions=at,
            rows=of,
            offsets=torch.tensor(ends, device=self.device),
            page_table=self.state.page_table[self.rows.slots],
            starts=zeros[: SLOTS + 1],
            gaps=zeros.view(-1, 2),
            writes=writes,
            wanted=zeros,
        )
        taps = torch.randn((len(at), self.width), generator=self.noise)
        taps[len(positions) :] = torch.nan
        return batch, taps.to(self.device)


def first_step(slot: int, length: int, rng: random.Random) -> Step:
    prompt = tuple(rng.randrange(VOCAB) for _ in range(length))
    params = SamplingParams(max_tokens=99, temperature=0.7 * (slot % 2), seed=slot)
    pages = tuple(range(1 + slot * COLUMNS, 1 + (slot + 1) * COLUMNS))
    row = Row("r", slot, length, 0, True, length)
    plan = Plan(0, Why("test"))
    return Step(1, (row,), plan, (Admission("r", slot, prompt, length, 0, params),), (PageEntry(slot, 0, pages),))


@torch.inference_mode()
def drafted_on(device: str, wider: int = 0) -> list[list[list[int]]]:
    """What is drafted over prompts, pauses within the window and beyond it, and a slot that is given anew."""
    rng, bench, found = random.Random(0), Bench(device, wider), []
    for slot, length in enumerate((100, 5, 40)):
        bench.run(first_step(slot, length, rng), [[rng.randrange(VOCAB)]])
    for number in range(150):
        pause = number % 50 in range(5, 30) or number > 50
        if number == 120:
            bench.run(first_step(1, 30, rng), [[rng.randrange(VOCAB)]])
        drafts = [0 if pause and number < 130 else rng.choice([0, 1, DRAFTS, DRAFTS]) for _ in range(SLOTS)]
        rows = tuple(Row("r", slot, 1, drafts[slot], True, 0) for slot in rng.sample(range(SLOTS), rng.choice([1, 3])))
        accepted = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 1 + row.drafts))] for row in rows]
        found.append(bench.run(Step(number, rows, Plan(max(drafts), Why("test"))), accepted))
    return found


def test_drafts_do_not_depend_on_the_width() -> None:
    drafts = drafted_on("cpu")
    assert sum(len(row) for step in drafts for row in step) > 80
    assert drafts == drafted_on("cpu", wider=2)


@pytest.mark.cuda
def test_a_gpu_drafts_what_plain_torch_drafts() -> None:
    """In float32; random features leave few near-ties, and what follows one differs in that row alone."""
    rows = list(zip(flat(drafted_on("cuda")), flat(drafted_on("cpu")), strict=True))
    assert sum(ours != theirs for ours, theirs in rows) <= len(rows) // 50


def flat(drafts: list[list[list[int]]]) -> list[list[int]]:
    return [row for step in drafts for row in step if row]
