"""`overdrive simulate`: figures that say what they are, and mistakes in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from overdrive.errors import OverdriveError
from overdrive.policy.simulation.compare import compare
from overdrive.policy.simulation.truth import PLANS
from overdrive.simulate import Settings
from overdrive.simulate import simulate as play_all

from . import worlds as simulated


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overdrive.cli", "simulate", "--steps", "20", "--load", "steady:2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_table_says_that_it_is_simulated_and_names_who_ran() -> None:
    shown = simulate("--controller", "auto", "fixed:3", "off", "ladder", "aimd", "--acceptance", "flip").stdout
    assert shown.count("simulated") == 2
    assert all(f"\n {name} " in shown for name in ("auto", "fixed:3", "off", "ladder", "aimd"))


def test_json_is_a_line_for_each_world() -> None:
    lines = simulate("--controller", "off", "oracle", "--costs", "moe", "cpu-smollm2", "--json").stdout.splitlines()
    worlds = [json.loads(line) for line in lines]
    assert [world["machine"] for world in worlds] == ["moe", "cpu-smollm2"]
    for world in worlds:
        assert world["simulated"] is True
        off, oracle = world["figures"]
        assert off["of_off"] == 1 and oracle["regret"] <= off["regret"]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"controllers": ["best"]}, "best"),
        ({"controllers": ["fixed:9"]}, "fixed:9"),
        ({"costs": ["tpu"]}, "tpu"),
        ({"acceptances": ["high"]}, "high"),
        ({"loads": ["no/such/trace.csv"]}, r"trace\.csv"),
        ({"settings": Settings(noise=7)}, "--noise"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(wrong: dict[str, Any], word: str) -> None:
    right = {"costs": ["moe"], "acceptances": ["drift"], "loads": ["ramp"], "controllers": ["off"]}
    with pytest.raises(OverdriveError, match=word):
        play_all(**{**right, "settings": Settings(), "as_json": True, **wrong})


def test_runs_are_told_one_by_one_and_each_name_once() -> None:
    told: list[tuple[int, int]] = []
    tell = lambda done, total: told.append((done, total))  # noqa: E731
    found = compare(simulated.world("moe", "steady:2", "drift", steps=5), ("off", "auto", "fixed:3", "auto"), tell)
    assert [figures.controller for figures in found.figures] == ["off", "auto", "fixed:3"]
    total = len(PLANS) + 3  # every fixed K, K = 0, the oracle and auto
    assert told == [(done, total) for done in range(total + 1)]
