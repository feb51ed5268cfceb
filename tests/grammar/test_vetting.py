"""Whatever a grammar does to its compiler, it does to itself alone: each gets its word, and none holds another up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from overdrive.errors import BadRequest
from overdrive.grammar.base import NotNow, without_tokenizer
from overdrive.grammar.guidance import GuidanceCompiler
from overdrive.grammar.levels import Level
from overdrive.grammar.programs import Programs, wait_for
from overdrive.grammar.vetting import Vetting

from .patients import Patients
from .words import VOCABULARY, compiler

LEVELS = (Level(0.02, 2, 0), Level(0.03, 1, 0), Level(0.04, 2, 0))
SECONDS = 60.0


@pytest.fixture(scope="module")
def vetting() -> Iterator[Vetting]:
    made = Vetting(Patients, LEVELS)
    yield made
    made.close()


def gone(pid: int) -> bool:
    """Whether the group of processes that this one led has none left; waits for it."""
    return soon(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def soon(fact: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if fact():
            return True
        time.sleep(0.01)
    return False


def test_what_is_fine_passes_with_its_text_and_its_cost(vetting: Vetting) -> None:
    found = vetting("fine", "a", SECONDS).result(SECONDS)
    assert found.grammar == "A"
    assert found.seconds < LEVELS[-1].seconds
    assert found.bytes >= 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("endless", "more than 0.04 seconds"),
        ("growing", "too much memory"),
        ("crashing", "too much memory"),
        ("panicking", "index out of bounds"),
    ],
)
def test_what_would_harm_the_engine_is_a_400(vetting: Vetting, kind: str, said: str) -> None:
    error = vetting(kind, "a", SECONDS).exception(SECONDS)
    assert isinstance(error, BadRequest)
    assert error.status == 400
    assert said in str(error)
    assert vetting("fine", "b", SECONDS).result(SECONDS).grammar == "B"


def test_however_many_never_compile_an_ordinary_one_does(vetting: Vetting) -> None:
    """And each of them has an end."""
    endless = [vetting("endless", str(number), SECONDS) for number in range(12)]
    ordinary = vetting("fine", "a", SECONDS)
    assert ordinary.result(SECONDS).grammar == "A"
    assert not all(one.done() for one in endless)
    assert {one.exception(SECONDS).status for one in endless} == {400}


def test_what_comes_too_late_is_no_fault_of_its_own(vetting: Vetting) -> None:
    assert isinstance(vetting("fine", "a", 0.0).exception(SECONDS), NotNow)
    assert isinstance(vetting("endless", "a", 0.01).exception(SECONDS), NotNow)


def test_a_vetter_that_dies_is_followed_by_another() -> None:
    vetting = Vetting(Patients, (Level(30.0, 1, 19),))
    assert vetting.pid == 0  # nobody has asked for anything
    assert vetting("fine", "a", SECONDS).result(SECONDS)
    pid, lost = vetting.pid, vetting("endless", "a", SECONDS)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(lost.exception(SECONDS), NotNow)
    assert gone(pid)
    assert vetting("fine", "b", SECONDS).result(SECONDS).grammar == "B"
    pid = vetting.pid
    vetting("endless", "b", SECONDS)
    vetting.close()
    assert gone(pid)


def test_a_child_that_is_stopped_keeps_no_place(vetting: Vetting) -> None:
    stopped = [vetting("stopped", str(number), 0.05) for number in range(LEVELS[0].children)]
    assert vetting("fine", "a", SECONDS).result(SECONDS).grammar == "A"
    assert all(isinstance(one.exception(SECONDS), NotNow) for one in stopped)


def test_a_vetter_that_is_stopped_is_followed_by_another() -> None:
    vetting = Vetting(Patients, LEVELS, patience=0.01)
    assert vetting("fine", "a", SECONDS).result(SECONDS)
    pid = vetting.pid
    os.kill(pid, signal.SIGSTOP)
    assert isinstance(vetting("fine", "b", 0.01).exception(SECONDS), NotNow)
    assert gone(pid)
    assert vetting("fine", "b", SECONDS).result(SECONDS).grammar == "B"
    vetting.close()


def test_a_vetter_that_is_stopped_can_be_closed() -> None:
    """Also while something is being sent that the pipe has no room for."""
    vetting = Vetting(Patients, LEVELS)
    assert vetting("fine", "a", SECONDS).result(SECONDS)
    pid = vetting.pid
    os.kill(pid, signal.SIGSTOP)
    vetting("fine", "b" * (4 << 20), SECONDS)
    vetting.close()
    assert gone(pid)


SCRIPT = """
import sys, time
from overdrive.grammar.levels import Level
from overdrive.grammar.vetting import Vetting
from tests.grammar.patients import Patients
vetting = Vetting(Patients, (Level(30.0, 1, 19),))
vetting("fine", "a", 30).result()
vetting("endless", "a", 30)
print(vetting.pid, flush=True)
time.sleep(60)
"""


def test_nothing_is_left_behind_by_an_engine_that_is_killed() -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=os.environ | paths) as engine:
        pid = int(engine.stdout.readline())
        assert alive(pid)
        engine.kill()
    assert gone(pid)


def test_what_passes_is_compiled_and_what_does_not_is_explained() -> None:
    vetting = Vetting(partial(GuidanceCompiler, without_tokenizer(VOCABULARY)))
    made = Programs(compiler(), vetting)
    fine, bad = made.ask("gbnf", 'root ::= "no" "ab"'), made.ask("json_schema", '{"items": {"not": {}}}')
    for ticket in (fine, bad):
        wait_for([ticket], SECONDS)
    assert fine.program().start().forced()
    with pytest.raises(BadRequest, match="'not' at #/items"):
        bad.program()
    made.close()
    vetting.close()
