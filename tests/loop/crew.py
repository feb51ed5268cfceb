"""Follower ranks as threads, in step with a tiny engine that leads them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import msgspec
import torch

from overdrive.config import DraftOptions, EngineOptions
from overdrive.device.attention.reference import PagedKV
from overdrive.device.base import DraftingRunner, Parts
from overdrive.device.cuda.device import CudaDevice
from overdrive.device.cuda.runner import CudaRunner
from overdrive.device.parallel.followers import LeadingRunner
from overdrive.device.parallel.following import undrawn
from overdrive.device.parallel.link import End, Run, ToFollower, encode, for_followers
from overdrive.device.parallel.ranks import Ranks
from overdrive.device.runner import Runner
from overdrive.device.sampling import SamplingState
from overdrive.device.state import SlotState
from overdrive.device.stream import InlineStream, Stream
from overdrive.draft import Choice, NoDrafts, Room
from overdrive.loop import Runner as LoopRunner
from overdrive.model.dummy import random_transformer, tiny_config
from overdrive.policy.controller import Controller
from overdrive.rank_process import run_steps
from overdrive.types import MAX_DRAFTS, Step
from tests.together import Meeting, ThreadRanks

from .bench import Bench
from .tiny_engine import VOCAB, Bounds, around, device, tiny_bench

CONFIG = tiny_config(VOCAB)


class QueuedLink:
    """A follower's end of the link, fed with what the leader encoded."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._decoder = msgspec.msgpack.Decoder(ToFollower)

    def receive(self) -> ToFollower:
        return self._decoder.decode(self.orders.get())


class Crew:
    """`count` ranks that share the tiny model; use it as a context manager, which ends the threads."""

    def __init__(self, count: int) -> None:
        self.meeting = Meeting(count)
        self._ranks = [ThreadRanks(self.meeting, rank, count) for rank in range(count)]
        self._links = [QueuedLink() for _ in range(1, count)]
        self._threads: list[threading.Thread] = []
        self.errors: list[Exception] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(End())
        for thread in self._threads:
            thread.join()

    @property
    def leader(self) -> Ranks:
        """Rank 0's end of what ranks exchange."""
        return self._ranks[0]

    def follow(self, make: Callable[[Ranks], DraftingRunner]) -> None:
        """Start every follower, with a runner of its own."""
        for ranks, link in zip(self._ranks[1:], self._links, strict=True):
            self._threads.append(threading.Thread(target=self._follow, args=(link, make(ranks))))
            self._threads[-1].start()

    def lead(self, runner: DraftingRunner) -> LoopRunner:
        """Rank 0's runner, which the others follow."""
        return LeadingRunner(runner, self._tell_step, self._give_up)

    def _follow(self, link: QueuedLink, runner: DraftingRunner) -> None:
        try:
            run_steps(link, runner, lookahead=0)
        except Exception as error:
            self.errors.append(error)
            self.meeting.close()

    def _tell_step(self, step: Step) -> None:
        self._tell(Run(for_followers(step)))

    def _tell(self, message: ToFollower) -> None:
        for link in self._links:
            link.orders.put(encode(message))

    def _give_up(self, reason: str) -> None:
        raise AssertionError(f"{reason}: {self.errors}")


def divided_bench(crew: Crew, stream: Stream, controller: Controller, make_drafter, **bounds) -> Bench:
    """As `tiny_bench`, with a crew behind it."""
    given = Bounds(**bounds)
    crew.follow(lambda ranks: follower(ranks, given))
    model = random_transformer(CONFIG, ranks=crew.leader)
    return tiny_bench(stream, controller, make_drafter, model=model, ranks=crew.leader, lead=crew.lead, **bounds)


def follower(ranks: Ranks, given: Bounds) -> Runner:
    """A rank's device side as `rank_process` sets it up: nobody drafts, nothing is drawn."""
    model = random_transformer(CONFIG, ranks=ranks)
    state = SlotState(given.max_rows, given.max_model_len, given.page_size)
    sampling = SamplingState(given.max_rows, VOCAB, model.dtype)
    kv = PagedKV.allocate(model.config, given.n_pages, given.page_size, model.dtype)
    drafter = NoDrafts().open(Room(device(), state, sampling, undrawn, given.n_pages))
    forward = device().forward(model, kv)
    return Runner(forward, model.logits, state, sampling, undrawn, drafter, InlineStream(), ranks=ranks)


def padded_divided_bench(
    crew: Crew, stream: Stream, controller: Controller, choice: Choice, acceptance: str = "", **bounds
) -> Bench:
    """As `padded_bench`, with a crew behind it."""
    given = Bounds(**bounds)
    crew.follow(lambda ranks: padded_runner(ranks, InlineStream(), NoDrafts(), given, acceptance))
    runner = padded_runner(crew.leader, stream, choice, given, acceptance)
    return around(given, controller, runner.sources, crew.lead(runner))


def padded_runner(ranks: Ranks, stream: Stream, choice: Choice, given: Bounds, acceptance: str = "") -> CudaRunner:
    """A rank's CUDA runner, on a CPU."""
    options = EngineOptions(draft=DraftOptions(simulate_acceptance=acceptance))
    model = random_transformer(CONFIG, ranks=ranks)
    parts = Parts(model, choice, given.limits(), given.n_pages, MAX_DRAFTS, (), options, ranks)
    return CudaDevice(torch.device("cpu")).assemble(parts, stream)
