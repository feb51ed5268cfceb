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
