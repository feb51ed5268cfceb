"""Laws of recorded passes: a recording is the pass, bit for bit, for every batch of its shape."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from overdrive.device.attention.reference import PagedKV
from overdrive.device.batch import Batch
from overdrive.device.cpu.attention import PagedAttention
from overdrive.device.cpu.elementwise import CpuOps
from overdrive.device.cpu.linear import LinearKernels, PackedLinear
from overdrive.device.cpu.packing import pack_int8
from overdrive.device.cpu.recording import RECORDED_TOKENS, RecordedPass
from overdrive.device.cpu.team import Team

HIDDEN, HEADS, KV_HEADS, DIMS, VOCAB, PAGE, PAGES = 64, 6, 2, 16, 90, 16, 800


class Layer:
    """One decoder layer's worth of every kind of kernel, with its own cache."""

    def __init__(self, team: Team, torch_too: bool = False) -> None:
        random_ = torch.Generator().manual_seed(1)
        kernels, self.ops, self.attention = LinearKernels(team), CpuOps(team), PagedAttention(team, DIMS)
        widths = {"qkv": HIDDEN, "up": HIDDEN, "down": 64}
        outputs = {"qkv": (HEADS + 2 * KV_HEADS) * DIMS, "up": 128, "down": HIDDEN}
        self.linear = {
            name: PackedLinear(kernels, pack_int8(torch.randn(outputs[name], inputs, generator=random_)))
            for name, inputs in widths.items()
        }
        self.out = PackedLinear(kernels, pack_int8(torch.randn(HIDDEN, HEADS * DIMS, generator=random_)))
        self.table = torch.randn(VOCAB, HIDDEN, generator=random_)
        self.norm = torch.randn(HIDDEN, generator=random_)
        angles = torch.randn(PAGE * PAGES, DIMS // 2, generator=random_)
        self.cos, self.sin = angles.cos(), angles.sin()
        shape = (PAGES, KV_HEADS, PAGE, DIMS)
        self.kv = PagedKV([torch.zeros(shape)], [torch.zeros(shape)], PAGE)
        self.torch_too = torch_too
        self.passes = 0

    def shape(self, batch: Batch) -> int:
        return self.attention.divide(batch, HEADS, KV_HEADS)[2]

    def forward(self, batch: Batch) -> Tensor:
        self.passes += 1
        ops, k_pages, v_pages = self.ops, self.kv.k_pages[0], self.kv.v_pages[0]
        residual = ops.embed(batch.ids, self.table)
        x = ops.rms_norm(residual, self.norm, 1e-5)
        q, k, v = self.linear["qkv"](x).view(len(x), -1, DIMS).split_with_sizes((HEADS, KV_HEADS, KV_HEADS), dim=1)
        ops.rope(q, k, batch.positions, self.cos, self.sin)
        self.attention.store(k, v, k_pages, v_pages, batch.writes)
        attended = self.attention.prepare(batch, HEADS, KV_HEADS)(q, k_pages, v_pages, 0.25)
        if self.torch_too:
            attended = attended * 2
        x = ops.add_rms_norm(residual, self.out(attended), self.norm, 1e-5)
        return ops.add_rms_norm(residual, self.linear["down"](ops.silu_mul(self.linear["up"](x))), self.norm, 1e-5)


class Head(Layer):
    """A pass as a draft network's: tokens and features side by side, some rows gathered, two results."""

    def forward(self, batch: Batch, features: Tensor, few: Tensor) -> tuple[Tensor, Tensor]:
        self.passes += 1
        ops = self.ops
        both = ops.empty(len(batch.ids), 2 * HIDDEN)
        ops.rms_norm(ops.embed(batch.ids, self.table), self.norm, 1e-5, both[:, :HIDDEN])
        ops.rms_norm(features, self.norm, 1e-5, both[:, HIDDEN:])
        q, k, v = self.linear["qkv"](both[:, HIDDEN:]).view(len(both), -1, DIMS).split((HEADS, KV_HEADS, KV_HEADS), 1)
        ops.rope(q, k, batch.positions, self.cos, self.sin)
        k_pages, v_pages = self.kv.k_pages[0], self.kv.v_pages[0]
        self.attention.store(k, v, k_pages, v_pages, batch.writes)
        attended = self.out(self.attention.prepare(batch, HEADS, KV_HEADS)(q, k_pages, v_pages, 0.25))
        return ops.embed(batch.wanted, ops.add_rms_norm(attended, both[:, :HIDDEN], self.norm, 1e-5)), self.out(few)


def random_batch(rng: random.Random, counts: list[int], contexts: list[int]) -> Batch:
    width = max(-(-(a + b) // PAGE) for a, b in zip(contexts, counts, strict=True))
    table = torch.tensor(rng.sample(range(1, PAGES), width * len(counts)), dtype=torch.int32).view(len(counts), width)
    positions = torch.cat([torch.arange(a, a + b) for a, b in zip(contexts, counts, strict=True)])
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return Batch(
        ids=torch.tensor([rng.randrange(VOCAB) for _ in positions]),
        positions=positions,
        rows=rows,
        offsets=torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()]),
        page_table=table,
        starts=torch.tensor([rng.randrange(context + 1) for context in contexts]),
        gaps=torch.tensor([sorted(rng.choices(range(context + 1), k=2)) for context in contexts]),
        writes=table[rows, positions // PAGE].long() * PAGE + positions % PAGE,
        wanted=torch.tensor(sorted(rng.sample(range(len(positions)), min(2, len(positions))))),
    )


@pytest.fixture(scope="module")
def team() -> Team:
    return Team(2)


def test_a_recording_is_the_pass(team: Team) -> None:
    rng = random.Random(0)
    plain, layer = Layer(team), Layer(team)
    recorded = RecordedPass(layer.forward, layer.shape, team)
    for _ in range(300):
        counts = rng.choice([[1], [4], [1, 1, 1], [2, 1, 4], [1] * 30, [20, 1], [RECORDED_TOKENS + 1]])
        contexts = [rng.choice([0, 3, 130, 300]) + rng.randrange(4) for _ in counts]
        batch = random_batch(rng, counts, contexts)
        assert torch.equal(recorded(batch), plain.forward(batch))
        for mine, others in zip(layer.kv.k_pages + layer.kv.v_pages, plain.kv.k_pages + plain.kv.v_pages, strict=True):
            assert torch.equal(mine, others)
    assert layer.passes < 100, "most passes came from recordings"


def test_a_recording_of_a_pass_with_inputs_is_the_pass(team: Team) -> None:
    rng = random.Random(1)
    plain, head = Head(team), Head(team)
    recorded = RecordedPass(head.forward, head.shape, team)
    for _ in range(200):
        counts = rng.choice([[1], [1, 1, 1], [2, 1, 4], [1] * 30, [RECORDED_TOKENS + 1]])
        batch = random_batch(rng, counts, [rng.choice([0, 130]) + rng.randrange(4) for _ in counts])
        inputs = torch.randn(len(batch.ids), HIDDEN), torch.randn(rng.choice([1, 2]), 3 * HEADS * DIMS)[:, 20:116]
        for got, expected in zip(recorded(batch, *inputs), plain.forward(batch, *inputs), strict=True):
            assert torch.equal(got, expected)
    assert head.passes < 80, "most passes came from recordings"


def test_two_recorded_passes_keep_out_of_each_others_way(team: Team) -> None:
    rng = random.Random(2)
    layer, head = Layer(team), Head(team)
    first, second = RecordedPass(layer.forward, layer.shape, team), RecordedPass(head.forward, head.shape, team)
    for _ in range(20):
        batch = random_batch(rng, [2, 1], [9, 40])
        features, few = torch.randn(3, HIDDEN), torch.randn(1, HEADS * DIMS)
        states = first(batch)
        kept = states.clone()
        results = second(batch, features, few)
        assert torch.equal(states, kept)
        assert all(torch.equal(*pair) for pair in zip(results, head.forward(batch, features, few), strict=True))


def test_an_input_for_more_rows_than_are_recorded_runs_as_it_is_written(team: Team) -> None:
    head = Head(team)
    recorded = RecordedPass(head.forward, head.shape, team)
    batch = random_batch(random.Random(0), [1], [4])
    for _ in range(2):
        recorded(batch, torch.randn(1, HIDDEN), torch.randn(RECORDED_TOKENS + 1, HEADS * DIMS))
    assert head.passes == 2


def test_a_result_lives_until_the_next_pass(team: Team) -> None:
    rng = random.Random(0)
    layer = Layer(team)
    recorded = RecordedPass(layer.forward, layer.shape, team)
    batches = [random_batch(rng, [n], [5]) for n in (1, 2, 3)]
    first = [recorded(batch).clone() for batch in batches]
    for batch, expected in zip(batches, first, strict=True):
        assert torch.equal(recorded(batch), expected)


def test_a_pass_that_needs_torch_runs_as_it_is_written(team: Team) -> None:
    rng = random.Random(0)
    plain, layer = Layer(team, torch_too=True), Layer(team, torch_too=True)
    recorded = RecordedPass(layer.forward, layer.shape, team)
    for _ in range(5):
        batch = random_batch(rng, [2, 1], [9, 40])
        assert torch.equal(recorded(batch), plain.forward(batch))


def test_recordings_share_their_memory(team: Team) -> None:
    """A result may be wide, the logits of every token; a recording for each number of tokens must not keep its own."""
    rng = random.Random(3)
    layer = Layer(team)
    recorded = RecordedPass(layer.forward, layer.shape, team)
    batches = [random_batch(rng, [1] * n, [5] * n) for n in range(17, 33)]  # one size of room
    places = {recorded(batch).data_ptr() for _ in range(2) for batch in batches}
    assert layer.passes == len(batches)
    assert len(places) < 9
