"""Where launches run: what a failure leaves behind, on every kind of stream."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from overdrive.device.cuda.stream import CudaStream
from overdrive.device.stream import Event, InlineStream, Stream, StreamError, ThreadStream, let_go

STREAMS = [
    pytest.param(InlineStream, id="inline"),
    pytest.param(ThreadStream, id="thread"),
    pytest.param(lambda: CudaStream(torch.device("cuda")), id="cuda", marks=pytest.mark.cuda),
]


class Step:
    """What a launch works on, and who waits for it."""

    def __init__(self) -> None:
        self.settled: list[Event] = []

    def fail(self) -> None:
        try:
            raise ValueError("within")
        except ValueError:
            raise RuntimeError("no kernel") from None


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> Iterator[Stream]:
    made: Callable[[], Stream] = request.param
    opened = made()
    gc.disable()
    yield opened
    gc.enable()
    opened.close()


def launch(stream: Stream) -> weakref.ref[Step]:
    """One that fails, as a loop does: whoever launched it is among the callers of what fails."""
    step = Step()
    stream.launch(lambda: step.fail())
    step.settled.append(stream.record())
    try:
        step.settled[0].wait()
    except StreamError as error:
        assert str(error) == "no kernel"
    else:
        raise AssertionError("it did not fail")
    return weakref.ref(step)


def test_a_failed_launch_is_forgotten_as_soon_as_its_error_is_cleared(stream: Stream) -> None:
    left = launch(stream)
    stream.clear_error()
    assert left() is None


def test_launches_run_again_once_the_error_is_cleared(stream: Stream) -> None:
    done: list[int] = []
    launch(stream)
    stream.launch(lambda: done.append(1))
    stream.clear_error()
    stream.launch(lambda: done.append(2))
    stream.record().wait()
    assert done == [2]


def test_where_an_error_came_from_is_still_told() -> None:
    try:
        Step().fail()
    except RuntimeError as error:
        kept = let_go(error)
    assert kept.__traceback__ is None
    assert kept.__context__ is not None and kept.__context__.__traceback__ is None
    assert "in fail" in kept.__notes__[0]


def raised(error: Exception, held: list[weakref.ref[Step]]) -> Exception:
    """The error as it was caught, behind a call that held a step."""
    step = Step()
    held.append(weakref.ref(step))
    try:
        raise error
    except Exception as caught:
        return caught


def test_errors_of_a_group_keep_nobody_either() -> None:
    held: list[weakref.ref[Step]] = []
    gc.disable()
    group = ExceptionGroup("two", [raised(ValueError("a"), held), raised(ValueError("b"), held)])
    let_go(group)
    gc.enable()
    assert [step() for step in held] == [None, None]


def test_an_error_with_a_note_of_its_own_gets_one_of_where_it_was_raised_once() -> None:
    error = ValueError("a")
    error.add_note("its own")
    for _ in range(3):
        let_go(raised(error, []))
    own, where = error.__notes__
    assert own == "its own" and "in raised" in where


class Odd(RuntimeError):
    """It takes no notes, as where memory is out, and cannot be compared."""

    def add_note(self, note: str) -> None:
        raise MemoryError

    def __eq__(self, other: object) -> bool:
        raise TypeError

    __hash__ = None  # type: ignore[assignment]


def test_an_error_that_takes_no_note_ends_no_stream(stream: Stream) -> None:
    def fail() -> None:
        try:
            raise Odd("first")
        except Odd:
            raise Odd("second") from ValueError("third")

    stream.launch(fail)
    with pytest.raises(StreamError, match="second"):
        stream.record().wait()
