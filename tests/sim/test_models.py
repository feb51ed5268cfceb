"""Costs, acceptance, loads and recorded traces of the simulator; and that no one beats its oracle."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from overdrive.errors import OverdriveError
from overdrive.policy.simulation.acceptance import MOST, parse_acceptance
from overdrive.policy.simulation.compare import compare, run_of
from overdrive.policy.simulation.costs import DENSE_8B, MACHINES, MIXTURE
from overdrive.policy.simulation.loads import parse_load
from overdrive.policy.simulation.record import SPAN, Run
from overdrive.policy.simulation.traces import read_trace
from overdrive.policy.simulation.truth import PLANS

from .worlds import PLAIN, world


def test_a_step_pays_for_the_next_size_up_and_in_proportion_beyond() -> None:
    assert PLAIN.multiply([0, 1, 2, 3, 4, 5, 8, 16]).tolist() == [0, 1, 1, 2, 2, 4, 4, 8]
    assert DENSE_8B.step(1, 0, 0) == pytest.approx(3.68e-3 * 1.075 + 0.3e-3)
    assert DENSE_8B.step(250, 256_000, 0) - DENSE_8B.step(250, 0, 0) == pytest.approx(32 * 264e-6, rel=0.01)


def test_drafting_costs_about_a_twentieth_of_a_step_each_and_catching_up_costs_once() -> None:
    one, two = DENSE_8B.draft([1, 2], 1, 1)
    assert one == pytest.approx(two - one) == pytest.approx(0.05 * DENSE_8B.step(1, 0, 0), rel=0.1)
    assert DENSE_8B.draft(0, 64, 4096) == 0
    late = [float(DENSE_8B.draft(k, 64, 4096) - DENSE_8B.draft(k, 64, 64)) for k in (1, 5)]
    assert late[0] == pytest.approx(late[1]) and late[0] > 0


def best_fixed(machine: str, rows: int, acceptance: str) -> int:
    return compare(world(machine, f"steady:{rows}", acceptance, steps=30, noise=0), ("off",)).best_fixed


def test_drafts_of_experts_pay_least_with_a_few_rows() -> None:
    """Best K falls and rises again with load, as for no dense model."""
    assert best_fixed("moe", 4, "stationary:0.5") == 0 < best_fixed("moe", 64, "stationary:0.5")
    assert best_fixed("dense-8b", 1, "stationary:0.5") > best_fixed("dense-8b", 160, "stationary:0.5") == 0
    touched = np.diff([float(MIXTURE.multiply(n)) for n in (1, 8, 64, 256)])
    assert touched[0] > touched[2]


def test_acceptance_changes_with_the_work() -> None:
    flip = parse_acceptance("flip:3")
    assert [flip.rates(done)[0, 0] for done in (0, 0.24, 0.25, 0.49, 0.5, 0.99)] == [0.85, 0.85, 0.2, 0.2, 0.85, 0.2]
    assert flip.flips == (0.25, 0.5, 0.75)
    drift = parse_acceptance("drift")
    assert drift.rates(0.25)[0, 0] == pytest.approx(0.6) and not drift.flips
    assert parse_acceptance("imposed:0.7,0.49").rates(0.5)[0] == pytest.approx([0.7] * MOST)
    assert parse_acceptance("stationary:0.5").rates(0)[0, 1] == pytest.approx(0.49)


@pytest.mark.parametrize("text", ["", "flip:0", "flip:x", "stationary:2", "imposed:", "imposed:.5,.6", "drift:3", "so"])
def test_an_unknown_acceptance_is_refused(text: str) -> None:
    with pytest.raises(OverdriveError):
        parse_acceptance(text)


def test_a_ramp_has_the_same_plain_steps_at_every_load() -> None:
    ramp = parse_load("ramp", DENSE_8B, 10)
    assert [n for n, _ in ramp.stages] == [1, 2, 4, 8, 16, 32, 64, 128, 250, 128, 64, 32, 16, 8, 4, 2, 1]
    assert all(tokens == 10 * n for n, tokens in ramp.stages)
    assert max(n for n, _ in parse_load("ramp", MACHINES["cpu-smollm2"], 10).stages) == 64
    with pytest.raises(OverdriveError, match="steady:N"):
        parse_load("steady:0", DENSE_8B, 10)


def test_recorded_traces_are_read(tmp_path) -> None:
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "kimi.jsonl.gz"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:05.9799600,110,27\n"
    )
    mooncake.write_bytes(gzip.compress(b'{"timestamp": 500, "input_length": 9, "output_length": 0, "hash_ids": [0]}\n'))
    trace = read_trace(azure, requests=10, speed=2, longest=1000)
    assert (trace.times.tolist(), trace.sizes.tolist()) == ([0, 1], [[1000, 10], [110, 27]])
    assert read_trace(mooncake, requests=1, speed=1, longest=1000).sizes.tolist() == [[9, 1]]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(OverdriveError, match=r"other\.csv"):
        read_trace(tmp_path / "other.csv", requests=1, speed=1, longest=1)
    with pytest.raises(OverdriveError, match=r"none\.csv cannot be read: no such file or directory$"):
        read_trace(tmp_path / "none.csv", requests=1, speed=1, longest=1)


def test_switches_and_recovery_are_counted_from_steps() -> None:
    run = Run()
    for i in range(400):
        late = 100 <= i < 160  # sixty steps after the flip it still wastes half
        run.step(
            drafts=3 if late else 0, rule="gear", decode_rows=1, tokens=1, seconds=1.0, done=i / 400, loss=0.5 * late
        )
        run.step(drafts=-1, rule="idle", decode_rows=0, tokens=0, seconds=9.0, done=i / 400, loss=0.0)
    assert (run.switches, run.starts, run.probes) == (1000 * 2 / 400, 1000 / 400, 0)
    assert run.shares == {0: 340 / 400, 3: 60 / 400}
    run.step(drafts=1, rule="probe", decode_rows=1, tokens=1, seconds=1.0, done=1.0, loss=0.0)
    assert (round(run.switches, 9), run.probes) == (1000 * 2 / 400, 1000 / 401)
    assert run.recoveries((0.25, 0.75)) == [60 - SPAN * 3 // 50, 0]
    assert run.recoveries(()) == []


ORACLE_WORLDS = [
    ("dense-8b", "steady:2", "stationary:0.7", 400),
    ("dense-8b", "steady:160", "stationary:0.8", 120),
    ("long-context", "steady:8", "stationary:0.5", 200),
    ("cpu-smollm2", "steady:4", "mixed", 150),
    ("moe", "steady:16", "flip", 60),
    ("dense-8b", "ramp", "drift", 15),
]


@pytest.mark.parametrize(("machine", "load", "acceptance", "steps"), ORACLE_WORLDS)
def test_nobody_beats_the_oracle(machine: str, load: str, acceptance: str, steps: int) -> None:
    """It plans one step ahead by what is likely, so by chance a fixed K may come out a little above it, and no more."""
    where = world(machine, load, acceptance, steps, noise=0.0)
    oracle = run_of(where, "oracle").throughput
    for k in (0, *PLANS):
        assert run_of(where, f"fixed:{k}").throughput <= 1.01 * oracle
