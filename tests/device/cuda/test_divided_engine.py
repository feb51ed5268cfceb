"""An engine on two GPUs: the answers of one, in graphs and without, and an end when a rank is lost. Needs two GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from overdrive import LLM
from tests.llm.conftest import open_tiny, write_tiny

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

TEXTS = ["the cat sat on the mat and the cat", "abcabcabcabc", "zz", "the cat sat on the mat but"]
WANTED = {"max_tokens": 24, "temperature": 0.8, "seed": 3, "frequency_penalty": 0.4, "logprobs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads as wide as the kernels want them."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    return write_tiny(tmp_path_factory.mktemp("tiny"), **sizes)


def on_gpus(folder: Path, ranks: int, **options) -> LLM:
    return open_tiny(folder, device="cuda", precision="float32", tensor_parallel=ranks, draft="ngram", **options)


def answers(llm: LLM) -> list[tuple[int, ...]]:
    first = llm.generate(TEXTS, **WANTED, prompt_logprobs=1)
    again = llm.generate(TEXTS[::-1], **WANTED)
    assert sum(answer.cached_tokens for answer in again)
    return [answer.token_ids for answer in (*first, *again)]


@pytest.mark.parametrize("graphs", [True, False])
def test_two_gpus_answer_as_one(folder: Path, graphs: bool) -> None:
    """In float32 the ranks' sums differ from one rank's in the last bits alone; these answers have no near-ties."""
    with on_gpus(folder, 1) as alone:
        expected = answers(alone)
    with on_gpus(folder, 2, graphs=graphs) as divided:
        assert answers(divided) == expected


def test_a_lost_gpu_ends_the_engine_and_nobody_waits_for_it(folder: Path) -> None:
    """In a process of its own, since the device goes on waiting."""
    done = subprocess.run([sys.executable, "-c", LOSING, str(folder)], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LOSING = """
import os, sys
from pathlib import Path
import pytest
from overdrive.errors import OverdriveError
from tests.device.cuda.test_divided_engine import on_gpus

divided = on_gpus(Path(sys.argv[1]), 2)
stream = divided.stream("once upon a time", max_tokens=400, ignore_eos=True)
next(stream)
divided._engine._others._all[0]._process.kill()
with pytest.raises(OverdriveError, match="rank"):
    list(stream)
with pytest.raises(OverdriveError, match="rank 1 ended"):
    divided.generate("more", max_tokens=3)
os._exit(0)
"""
