"""Engines of every kind of speculation over the tiny model in float64, and requests alone without any as the oracle.

A token is the byte of its number, so stop strings can be written down as tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import pytest

from overdrive.device.state import SlotState
from overdrive.device.stream import InlineStream, ThreadStream
from overdrive.draft import Room
from overdrive.draft.base import Drafter
from overdrive.policy.controller import Controller, FixedDrafts
from overdrive.request import Request
from overdrive.types import Finish, SamplingParams
from tests.drafters import RandomDrafter, ScriptedDrafter
from tests.loop.bench import Bench, RandomDrafts
from tests.loop.tiny_drafters import DRAFTERS
from tests.loop.tiny_engine import VOCAB, tiny_bench, tiny_oracle
from tests.loop.toy import ByteStops

FLIPPING = -1
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """How an engine speculates. drafts: K, or FLIPPING for another one every step."""

    drafter: str
    drafts: int
    overlap: bool

    def __str__(self) -> str:
        k = "flipping" if self.drafts == FLIPPING else f"k{self.drafts}"
        return f"{self.drafter}-{k}-{'overlap' if self.overlap else 'inline'}"

    def controller(self) -> Controller:
        return RandomDrafts(random.Random(1)) if self.drafts == FLIPPING else FixedDrafts(self.drafts)

    def make_drafter(self, room: Room, texts: Sequence[Ids]) -> Drafter:
        if self.drafter == "random":
            return RandomDrafter(VOCAB, seed=2)
        if self.drafter in ("knowing", "erring"):
            return KnowingDrafter(texts, room.state, errors=0.0 if self.drafter == "knowing" else 0.3)
        return DRAFTERS[self.drafter](room)


NETWORKS = [("eagle3", 3), ("eagle3", FLIPPING), ("small", FLIPPING), ("ngram+eagle3", FLIPPING)]
DRAFTING = [
    ("none", 3),
    ("random", 7),
    *NETWORKS,
    *((name, k) for name in ("ngram", "knowing") for k in (0, 1, 3, 7, FLIPPING)),
]
SETTINGS = [Setting(name, k, overlap) for name, k in [*DRAFTING, ("erring", 7)] for overlap in (False, True)]
EVERY_K = (0, 1, 2, 3, 5, 7, 15, FLIPPING)
NAMES = (*DRAFTERS, "random", "knowing", "erring")
OTHERS = [Setting(name, k, overlap) for name in NAMES for k in EVERY_K for overlap in (False, True)]
every_setting = pytest.mark.parametrize(
    "setting",
    [*SETTINGS, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS if one not in SETTINGS)],
    ids=str,
)
PLAIN = Setting("none", 0, False)


class KnowingDrafter(ScriptedDrafter):
    """Proposes what really follows: the one of `texts` that begins with what the slot was admitted with."""

    def __init__(self, texts: Sequence[Ids], state: SlotState, errors: float) -> None:
        self._known = texts
        self._by_slot: dict[int, Ids] = {}
        super().__init__(self._by_slot, state.lengths, VOCAB, errors)

    def admit(self, slot: int, tokens: Sequence[int], computed: int) -> None:
        own = tuple(tokens)
        self._by_slot[slot] = next((text for text in self._known if text[: len(own)] == own), own)


@contextmanager
def engine(setting: Setting, texts: Sequence[Ids] = (), **options: object) -> Iterator[Bench]:
    """An engine of that setting; on leaving it must be idle, with every page, slot and flight returned.

    texts: prompt and continuation of what will be asked, for drafters that know. options: as for `tiny_bench`.
    """
    stream = ThreadStream() if setting.overlap else InlineStream()
    given = {"lookahead": int(setting.overlap), **options}
    bench = tiny_bench(stream, setting.controller(), lambda room: setting.make_drafter(room, texts), **given)
    try:
        yield bench
        bench.run()
        bench.check_conserved()
    finally:
        stream.close()


def request(name: str, prompt: Iterable[int], arrival: int = 0, **params: object) -> Request:
    """A greedy request of 20 tokens unless `params` (of SamplingParams) say otherwise."""
    drawn = SamplingParams(**{"max_tokens": 20, "temperature": 0.0, **params})
    return Request(name, tuple(prompt), drawn, arrival, ByteStops(drawn.stop))


def ask(bench: Bench, requests: Iterable[Request]) -> None:
    """Submit and run to the end."""
    for one in requests:
        bench.scheduler.submit(one)
    bench.run()


@lru_cache(maxsize=2048)
def alone(prompt: Ids, params: SamplingParams) -> tuple[Ids, Finish]:
    """The request alone, one token at a time."""
    ids, finish = tiny_oracle(prompt, params)
    return tuple(ids), finish


def text_of(one: Request) -> Ids:
    """Prompt and answer of a request alone, as far as the answer may go without its stops."""
    free = SamplingParams(max_tokens=one.params.max_tokens, temperature=one.params.temperature, seed=one.params.seed)
    return one.prompt + alone(one.prompt, free)[0]


def check_alone(bench: Bench, requests: Iterable[Request]) -> None:
    """Every answer and its one finish are those of the request alone."""
    for one in requests:
        ids, finish = alone(one.prompt, one.params)
        assert tuple(bench.answers[one.id]) == ids, one.id
        assert bench.finishes[one.id] == [finish], one.id
