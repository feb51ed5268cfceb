"""Ranks in processes of their own: gloo's operations, the link, and every way a rank can be lost."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist

from overdrive import LLM
from overdrive.device.parallel.followers import Followers
from overdrive.device.parallel.gloo import GlooRanks
from overdrive.device.parallel.link import Run, encode, for_followers
from overdrive.errors import OverdriveError
from overdrive.types import Admission, PageEntry, Plan, Row, SamplingParams, Step, Why
from tests.llm.conftest import open_tiny, write_tiny
from tests.patience import PATIENCE, wait_until
from tests.together import side_by_side

SOON = timedelta(seconds=PATIENCE)
TEXTS = ["the cat sat on the mat and the cat", "abcabcabcabc", "zz", "the cat sat on the mat but"]
WANTED = {"max_tokens": 14, "temperature": 0.8, "seed": 3, "frequency_penalty": 0.4, "logprobs": 1}


def gloo_pair(work) -> list:
    """`work(ranks)` on two gloo ranks."""
    store = dist.HashStore()
    return side_by_side(2, lambda rank: work(GlooRanks(store, rank, 2, SOON)))


def test_gloo_ranks_meet() -> None:
    def work(ranks: GlooRanks) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
        x = torch.arange(6, dtype=torch.float64).view(3, 2) * (1 + ranks.rank)
        mine = torch.tensor([[1, 2, 3], [4, 5, 6]]) * (1 - ranks.rank), torch.tensor([7, 8]) * (1 - ranks.rank)
        ranks.share(*mine)
        assert ranks.gather(x[:0]).shape == (0, 4)  # a step in which nobody emits
        return ranks.sum(x.clone()), ranks.gather(x), [part.tolist() for part in mine]

    for total, side, shared in gloo_pair(work):
        assert total.tolist() == [[0, 3], [6, 9], [12, 15]]
        assert side.tolist() == [[0, 1, 0, 2], [2, 3, 4, 6], [4, 5, 8, 10]]
        assert shared == [[[1, 2, 3], [4, 5, 6]], [7, 8]]


def test_a_rank_that_is_left_alone_is_told_so() -> None:
    def work(ranks: GlooRanks) -> None:
        if ranks.rank:
            ranks.close()
            return
        with pytest.raises(RuntimeError, match="another rank has ended"):
            for _ in range(2):
                ranks.sum(torch.zeros(8))

    gloo_pair(work)


def test_followers_get_all_of_a_step_but_how_to_draw() -> None:
    """Whatever seed a caller gives, the step fits the link."""
    row = Row("r", 2, 5, 3, True, 40, prompt_logprobs=2)
    admission = Admission("r", 2, (1, 2, 3, 4, 5), 5, 0, SamplingParams(max_tokens=9, top_k=3, seed=(1 << 90) + 5))
    step = Step(7, (row,), Plan(3, Why("fixed")), (admission,), (PageEntry(2, 0, (4, 5)),))
    told = for_followers(step)
    assert msgspec.msgpack.decode(encode(Run(told)), type=Run).step == told
    assert told.admissions[0].params == SamplingParams(max_tokens=1, seed=5)
    assert (told.rows, told.page_entries, told.plan) == (step.rows, step.page_entries, step.plan)
    assert told.admissions[0].tokens == admission.tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[LLM]:
    """The tiny model on two ranks. The last test that takes it loses one of them."""
    with open_tiny(folder, tensor_parallel=2, **drafts(folder)) as llm:
        yield llm


def drafts(folder: Path) -> dict[str, str]:
    """A small model that is the target itself, in one piece: many drafts are right."""
    return {"draft": "ngram+small", "draft_model": str(folder), "overlap": "on"}


def processes(llm: LLM) -> list[subprocess.Popen]:
    return [follower._process for follower in llm._engine._others._all]


def answers(llm: LLM) -> list[tuple]:
    """Drafts, cached prompts, prompt log-probabilities, an answer that is given up."""
    first = llm.generate(TEXTS, **WANTED, prompt_logprobs=1)
    with contextlib.closing(llm.stream("the cat", max_tokens=50)) as stream:
        next(stream)
    again = llm.generate(TEXTS[::-1], **WANTED)
    assert sum(answer.accepted_drafts for answer in first)
    assert sum(answer.cached_tokens for answer in again)
    return [(answer.token_ids, answer.cached_tokens, answer.accepted_drafts) for answer in (*first, *again)]


def test_two_processes_answer_as_one(folder: Path, pair: LLM) -> None:
    with open_tiny(folder, **drafts(folder)) as alone:
        assert answers(pair) == answers(alone)


def test_a_follower_ends_well_with_an_engine_that_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.device.parallel.followers.END_SECONDS", PATIENCE)
    llm = open_tiny(folder, tensor_parallel=2, draft="none")
    assert llm.generate("a", max_tokens=2)
    followers = processes(llm)
    llm.close()
    assert [process.returncode for process in followers] == [0]


def test_a_follower_that_dies_ends_the_engine(pair: LLM) -> None:
    """Whoever waits gets an error that names the rank; nobody hangs, and nothing more is taken."""
    stream = pair.stream("once upon a time", max_tokens=400, ignore_eos=True)
    next(stream)
    processes(pair)[0].kill()
    with pytest.raises(OverdriveError, match=r"another rank has ended|rank 1 ended"):
        list(stream)
    with pytest.raises(OverdriveError, match=r"^rank 1 ended unexpectedly \(signal SIGKILL\)$"):
        pair.generate("more", max_tokens=3)


def test_followers_end_with_their_leader() -> None:
    """However it went: nothing of theirs depends on its last words."""
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    follower = int(leader.stdout.readline())
    assert alive(follower)
    leader.kill()
    leader.wait()
    wait_until(lambda: not alive(follower))


LEADER = """
import time
from overdrive.device.parallel.followers import Followers
from overdrive.device.parallel.link import Hello
followers = Followers(2, {"WHAT": "waits"}, "tests.device.faulty_rank")
followers._await(Hello)
print(followers._all[0]._process.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("says why", r"^rank 1: the weights are gone$"),
        ("says nothing", r"^rank 1 ended unexpectedly \(exit code 3\)$"),
    ],
)
def test_a_follower_that_fails_at_start_is_named(what: str, said: str) -> None:
    followers = Followers(3, {"WHAT": what}, "tests.device.faulty_rank")
    try:
        with pytest.raises(OverdriveError, match=said):
            followers.await_loaded(lambda *_: None)
    finally:
        followers.close()


def test_nobody_waits_for_a_device_that_waits_for_a_lost_rank() -> None:
    class Never:
        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            raise AssertionError("this would take for ever")

    followers = Followers(2, {"WHAT": "says nothing"}, "tests.device.faulty_rank")
    try:
        with pytest.raises(RuntimeError, match=r"^rank 1 ended unexpectedly \(exit code 3\)$"):
            followers.wait(Never())
    finally:
        followers.close()


def test_a_follower_that_hangs_is_ended() -> None:
    followers = Followers(2, {"WHAT": "hangs"}, "tests.device.faulty_rank")
    followers.give_up("enough")
    followers.close()
    assert [follower._process.returncode for follower in followers._all] == [-signal.SIGKILL]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (4, "^--tensor-parallel 4: the model's 2 key-value heads cannot be divided by 4; take 2$"),
        (0, "^--tensor-parallel must be at least 1, not 0$"),
    ],
)
def test_numbers_of_ranks_that_cannot_be_are_refused(folder: Path, ranks: int, said: str) -> None:
    with pytest.raises(OverdriveError, match=said):
        open_tiny(folder, tensor_parallel=ranks)
