"""Follower ranks as threads, in step with a tiny engine that leads them."""

from __future__ import annotations

import queue
import threading

import msgspec

from overdrive.device.attention.reference import PagedKV
from overdrive.device.parallel.followers import LeadingRunner
from overdrive.device.parallel.following import undrawn
from overdrive.device.parallel.link import End, Run, ToFollower, encode, for_followers
from overdrive.device.parallel.ranks import Ranks
from overdrive.device.runner import Runner
from overdrive.device.sampling import SamplingState
from overdrive.device.state import SlotState
from overdrive.device.stream import InlineStream
from overdrive.draft import NoDrafts, Room
from overdrive.model.dummy import random_transformer, tiny_config
from overdrive.rank_process import run_steps
from overdrive.types import Step
from tests.together import Meeting, ThreadRanks

from .tiny_engine import MAX_MODEL_LEN, VOCAB, device, tiny_bench

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

    def bench(self, stream, controller, make_drafter, *, n_pages: int = 200, page_size: int = 4, max_rows=5, **rest):
        """As `tiny_bench`, with this crew behind it."""
        for ranks, link in zip(self._ranks[1:], self._links, strict=True):
            runner = follower(ranks, n_pages, page_size, max_rows)
            self._threads.append(threading.Thread(target=self._follow, args=(link, runner)))
            self._threads[-1].start()
        leader = self._ranks[0]
        return tiny_bench(
            stream,
            controller,
            make_drafter,
            n_pages=n_pages,
            page_size=page_size,
            max_rows=max_rows,
            model=random_transformer(CONFIG, ranks=leader),
            ranks=leader,
            lead=lambda runner: LeadingRunner(runner, self._tell_step, self._give_up),
            **rest,
        )

    def _follow(self, link: QueuedLink, runner: Runner) -> None:
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


def follower(ranks: Ranks, n_pages: int, page_size: int, max_rows: int) -> Runner:
    """A rank's device side as `rank_process` sets it up: nobody drafts, nothing is drawn."""
    model = random_transformer(CONFIG, ranks=ranks)
    state = SlotState(max_rows, MAX_MODEL_LEN, page_size)
    sampling = SamplingState(max_rows, VOCAB, model.dtype)
    kv = PagedKV.allocate(model.config, n_pages, page_size, model.dtype)
    drafter = NoDrafts().open(Room(device(), state, sampling, undrawn, n_pages))
    forward = device().forward(model, kv)
    return Runner(forward, model.logits, state, sampling, undrawn, drafter, InlineStream(), ranks=ranks)
