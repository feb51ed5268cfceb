"""A follower: a rank's process that holds its part of the model and runs the steps that the leader tells it.

It makes the same launches as the leader in the same order, with nobody drafting and nothing drawn: drafts and verdicts
arrive from the leader's device. It knows no requests and has no answers, and ends with its leader.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import deque

from overdrive.device.base import DraftingRunner, Parts
from overdrive.device.build import open_device
from overdrive.device.parallel.connect import connect, reach_store
from overdrive.device.parallel.link import (
    Failed,
    FollowerEnd,
    Hello,
    Loaded,
    Loading,
    Open,
    Ready,
    Run,
    Start,
    end_with_leader,
)
from overdrive.device.stream import synchronize
from overdrive.draft import NoDrafts
from overdrive.engine import limits_of
from overdrive.errors import OverdriveError, one_line
from overdrive.heap import freeze_heap
from overdrive.loop import Flight
from overdrive.model.weights import load


def main(address: str, rank: int) -> None:
    """Serve the leader at the other end of `address` until it says so, or is gone."""
    end_with_leader()
    link = FollowerEnd(address)
    link.send(Hello())
    code = 0
    try:
        follow(link, rank)
    except Exception as error:
        if not isinstance(error, OverdriveError | MemoryError | RuntimeError):
            traceback.print_exc()  # nobody's mistake but ours
        link.send(Failed(one_line(error)))
        code = 1
    link.close()
    os._exit(code)  # a device that waits for the others would keep the interpreter from ending


def follow(link: FollowerEnd, rank: int) -> None:
    """Connect, load, set up, run steps. Raises whatever goes wrong; returns when there is nothing more to do."""
    start = link.receive()
    if not isinstance(start, Start):
        return
    options = start.options
    device = open_device(options, rank=rank)
    count = options.device.tensor_parallel
    ranks = connect(reach_store(start.port, count), rank, count, device.torch_device)

    def progress(label: str, done: int, total: int) -> None:
        link.send(Loading(label, done, total))

    loaded = load(start.model, options.model, device.torch_device, progress, device.team, ranks)
    link.send(Loaded())
    message = link.receive()
    if isinstance(message, Open):
        model, limits = loaded.transformer, limits_of(loaded, options)
        parts = Parts(model, NoDrafts(), limits, message.n_pages, message.drafts, message.plans, options, ranks)
        runner = device.open_runner(parts, device.open_stream(synchronize), progress)
        freeze_heap()
        link.send(Ready())
        run_steps(link, runner, device.lookahead)


def run_steps(link: FollowerEnd, runner: DraftingRunner, lookahead: int) -> None:
    """Launch every step as it comes. Raises OverdriveError when a launch failed.

    lookahead: as in `overdrive.loop.Loop`: steps that may be under way when the next is awaited.
    """
    pending: deque[Flight] = deque()
    while isinstance(message := link.receive(), Run):
        flight = runner.draft(message.step)
        runner.forward(flight)
        runner.accept(flight)
        runner.absorb(flight)
        pending.append(flight)
        if len(pending) > lookahead:
            _settle(pending.popleft())


def _settle(flight: Flight) -> None:
    try:
        flight.wait()
    except RuntimeError as error:
        raise OverdriveError(f"a launch failed: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
