"""Whatever a grammar does to its compiler, it does to itself alone: each gets its word, and none holds another up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from overdrive.errors import BadRequest
from overdrive.grammar.base import NotNow, without_tokenizer
from overdrive.grammar.guidance import GuidanceCompiler
from overdrive.grammar.levels import Level
from overdrive.grammar.programs import Programs, wait_for
from overdrive.grammar.vetting import Vetting
from tests.patience import PATIENCE, wait_until

from .patients import Patients
from .words import VOCABULARY, compiler

LEVELS = (Level(0.02, 2, 0), Level(0.03, 1, 0), Level(0.1, 2, 0))


@pytest.fixture(scope="module")
def vetting() -> Iterator[Vetting]:
    made = Vetting(Patients, LEVELS)
    yield made
    made.close()


def alive(pid: int) -> bool:
    """Whether the group of processes that this one led has any left."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_fine_passes_with_its_text_and_its_cost(vetting: Vetting) -> None:
    found = vetting("fine", "a", PATIENCE).result(PATIENCE)
    assert found.grammar == "A"
    assert found.seconds < LEVELS[-1].seconds
    assert found.bytes >= 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("endless", "more than 0.1 seconds"),
        ("growing", "too much memory"),
        ("crashing", "too much memory"),
        ("panicking", "index out of bounds"),
    ],
)
def test_what_would_harm_the_engine_is_a_400(vetting: Vetting, kind: str, said: str) -> None:
    error = vetting(kind, "a", PATIENCE).exception(PATIENCE)
    assert isinstance(error, BadRequest)
    assert error.status == 400
    assert said in str(error)
    assert vetting("fine", "b", PATIENCE).result(PATIENCE).grammar == "B"


def test_however_many_never_compile_an_ordinary_one_does() -> None:
    """Long before the last of them has an end."""
    vetting = Vetting(Patients, (*LEVELS[:2], Level(30.0, 2, 19)))
    endless = [vetting("endless", str(number), PATIENCE) for number in range(12)]
    assert vetting("fine", "a", PATIENCE).result(PATIENCE).grammar == "A"
    assert not any(one.done() for one in endless)
    vetting.close()


def test_each_of_many_that_never_compile_has_an_end(vetting: Vetting) -> None:
    endless = [vetting("endless", str(number), PATIENCE) for number in range(6)]
    assert {one.exception(PATIENCE).status for one in endless} == {400}


def test_what_comes_too_late_is_no_fault_of_its_own(vetting: Vetting) -> None:
    assert isinstance(vetting("fine", "a", 0.0).exception(PATIENCE), NotNow)
    assert isinstance(vetting("endless", "a", 0.01).exception(PATIENCE), NotNow)


def test_a_vetter_that_dies_is_followed_by_another() -> None:
    vetting = Vetting(Patients, (Level(30.0, 1, 0),))
    assert vetting.pid == 0  # nobody has asked for anything
    assert vetting("fine", "a", PATIENCE).result(PATIENCE)
    pid, lost = vetting.pid, vetting("endless", "a", PATIENCE)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(lost.exception(PATIENCE), NotNow)
    wait_until(lambda: not alive(pid))
    assert vetting("fine", "b", PATIENCE).result(PATIENCE).grammar == "B"
    pid = vetting.pid
    vetting("endless", "b", PATIENCE)
    vetting.close()
    wait_until(lambda: not alive(pid))


def test_a_child_that_is_stopped_keeps_no_place(vetting: Vetting) -> None:
    stopped = [vetting("stopped", str(number), 0.05) for number in range(LEVELS[0].children)]
    assert vetting("fine", "a", PATIENCE).result(PATIENCE).grammar == "A"
    assert all(isinstance(one.exception(PATIENCE), NotNow) for one in stopped)


def test_a_vetter_that_is_stopped_is_followed_by_another() -> None:
    vetting = Vetting(Patients, LEVELS, patience=0.01)
    assert vetting("fine", "a", PATIENCE).result(PATIENCE)
    pid = vetting.pid
    os.kill(pid, signal.SIGSTOP)
    assert isinstance(vetting("fine", "b", 0.01).exception(PATIENCE), NotNow)
    wait_until(lambda: not alive(pid))
    assert vetting("fine", "b", PATIENCE).result(PATIENCE).grammar == "B"
    vetting.close()


def test_a_vetter_that_is_stopped_can_be_closed() -> None:
    """Also while something is being sent that the pipe has no room for."""
    vetting = Vetting(Patients, LEVELS)
    assert vetting("fine", "a", PATIENCE).result(PATIENCE)
    pid = vetting.pid
    os.kill(pid, signal.SIGSTOP)
    vetting("fine", "b" * (4 << 20), PATIENCE)
    vetting.close()
    wait_until(lambda: not alive(pid))


SCRIPT = """
import sys, time
from overdrive.grammar.levels import Level
from overdrive.grammar.vetting import Vetting
from tests.patience import PATIENCE, wait_until
from tests.grammar.patients import Patients
vetting = Vetting(Patients, (Level(30.0, 1, 0),))
vetting("fine", "a", 60).result()
vetting("endless", "a", 60)
print(vetting.pid, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_behind_by_an_engine_that_is_killed() -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=os.environ | paths) as engine:
        pid = int(engine.stdout.readline())
        assert alive(pid)
        engine.kill()
    wait_until(lambda: not alive(pid))


def test_what_passes_is_compiled_and_what_does_not_is_explained() -> None:
    vetting = Vetting(partial(GuidanceCompiler, without_tokenizer(VOCABULARY)))
    made = Programs(compiler(), vetting)
    fine, bad = made.ask("gbnf", 'root ::= "no" "ab"'), made.ask("json_schema", '{"items": {"not": {}}}')
    for ticket in (fine, bad):
        wait_for([ticket], PATIENCE)
    assert fine.program().start().forced()
    with pytest.raises(BadRequest, match="'not' at #/items"):
        bad.program()
    made.close()
    vetting.close()
