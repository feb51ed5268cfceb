"""Whatever a grammar does to its compiler, it does to itself alone: each gets its word, and none holds another up."""

from __future__ import annotations

import errno
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


def begun(vetting: Vetting) -> list[str]:
    """The kinds of those that it was heard of that they are being tried."""
    return [asked.kind for asked in list(vetting._asked.values()) if asked.begun]


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


def test_that_no_process_is_to_be_had_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", none)
    vetting = Vetting(Patients, LEVELS)
    error = vetting("fine", "a", PATIENCE).exception(PATIENCE)
    vetting.close()
    assert isinstance(error, NotNow)
    assert str(error) == "the grammar could not be compiled: resource temporarily unavailable"


def test_a_vetter_that_dies_is_followed_by_another() -> None:
    vetting = Vetting(Patients, (Level(30.0, 1, 0),))
    assert vetting.pid == 0  # nobody has asked for anything
    assert vetting("fine", "a", PATIENCE).result(PATIENCE)
    pid = vetting.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not (alive(pid) or vetting.pid))
    assert vetting("fine", "b", PATIENCE).result(PATIENCE).grammar == "B"
    pid = vetting.pid
    vetting("endless", "b", PATIENCE)
    vetting.close()
    wait_until(lambda: not alive(pid))


def test_a_vetter_that_is_killed_costs_no_grammar_its_verdict() -> None:
    """Each is tried once more, and those that had not begun before those that had."""
    vetting = Vetting(Patients, (Level(30.0, 1, 0),))
    assert vetting("fine", "a", PATIENCE).result(PATIENCE)
    pid, endless = vetting.pid, vetting("endless", "a", PATIENCE)
    wait_until(lambda: begun(vetting) == ["endless"])
    waiting = [vetting("fine", source, PATIENCE) for source in "bcd"]
    os.kill(pid, signal.SIGKILL)
    assert [one.result(PATIENCE).grammar for one in waiting] == ["B", "C", "D"]
    assert vetting.pid not in (0, pid) and not endless.done()
    os.kill(vetting.pid, signal.SIGKILL)
    assert isinstance(endless.exception(PATIENCE), NotNow), "tried twice, and not a third time"
    vetting.close()


def test_a_grammar_that_kills_its_vetter_takes_no_other_with_it() -> None:
    vetting = Vetting(Patients, (Level(30.0, 1, 0),))
    killing = vetting("killing", "a", PATIENCE)
    waiting = [vetting("fine", str(number), PATIENCE) for number in range(5)]
    assert [one.result(PATIENCE).grammar for one in waiting] == list("01234")
    assert isinstance(killing.exception(PATIENCE), NotNow)
    assert vetting("fine", "b", PATIENCE).result(PATIENCE).grammar == "B"
    vetting.close()


def test_a_vetter_that_cannot_start_is_not_started_for_ever(monkeypatch) -> None:
    vetting, started = Vetting(Patients, LEVELS), []
    monkeypatch.setattr("overdrive.grammar.vetting.MAIN", "{!r}, {}; raise SystemExit(1)")
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **how: started.append(1) or popen(*given, **how))
    lost = [vetting("fine", str(number), PATIENCE) for number in range(3)]
    assert all(isinstance(one.exception(PATIENCE), NotNow) for one in lost)
    assert 2 <= len(started) <= 6
    vetting.close()


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
