"""What a run will do: blocks of requests, each for one arm at one load, in the order in which they take turns.

Pure: from options, texts and arrivals to requests. Knows nothing of connections.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overdrive.bench.arms import Arm, turns
from overdrive.bench.client import Ask, Sample
from overdrive.bench.prompts import Source
from overdrive.bench.traces import Arrival
from overdrive.errors import OverdriveError

PAUSE_SECONDS = 0.4  # between two turns: counters are read
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Block:
    """One arm's turn at one load. load: users at once (of a ramp its peak, of a trace its speed)."""

    number: int
    arm: Arm
    load: float
    repeat: int


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares of requests of each kind; the rest is plain. Kinds do not overlap.

    sampled: temperature 0.8 with a seed of its own. constrained: the answer must be a JSON object.
    long: the prompt is filled up to about long_tokens.
    """

    sampled: float = 0.0
    constrained: float = 0.0
    long: float = 0.0
    long_tokens: int = 2000

    def kinds(self, count: int, seed: int) -> list[str]:
        """The kind of each of `count` requests: the shares exactly, to the nearest request, in random order."""
        shares = {"sampled": self.sampled, "constrained": self.constrained, "long": self.long}
        if min(shares.values()) < 0 or sum(shares.values()) > 1 + 1e-9:
            raise OverdriveError("--sampled, --constrained and --long are shares: each from 0, together at most 1")
        kinds = [kind for kind, share in shares.items() for _ in range(round(share * count))][:count]
        kinds += ["plain"] * (count - len(kinds))
        random.Random(seed).shuffle(kinds)
        return kinds


@dataclass(frozen=True, slots=True)
class Maker:
    """Turns texts into requests. common: fields of all of them."""

    source: Source
    endpoint: str
    max_tokens: int
    common: dict[str, Any]

    def plain(self, text: str, max_tokens: int = 0) -> Ask:
        """A request for an answer to `text`."""
        said = {"messages": [{"role": "user", "content": text}]} if self.endpoint == "chat" else {"prompt": text}
        return Ask(PATHS[self.endpoint], {**said, "max_tokens": max_tokens or self.max_tokens, **self.common})

    def several(self, count: int) -> list[Ask]:
        """One request for each of the first `count` texts."""
        return [self.plain(text) for text in self.source.take(count)]

    def mixed(self, count: int, mixture: Mixture, seed: int) -> list[Ask]:
        """`count` requests of all the mixture's kinds."""
        texts, kinds = self.source.take(count), mixture.kinds(count, seed)
        return [self._of_kind(kind, texts[index], index, mixture) for index, kind in enumerate(kinds)]

    def _of_kind(self, kind: str, text: str, index: int, mixture: Mixture) -> Ask:
        if kind == "long":
            text = f"{self.source.of_length(mixture.long_tokens, index)}\n\n{text}"
        elif kind == "constrained":
            text = f"{text}\n\nAnswer with a JSON object."
        fields: dict[str, dict[str, Any]] = {
            "sampled": {"temperature": 0.8, "seed": index},
            "constrained": {"response_format": {"type": "json_object"}},
        }
        ask = self.plain(text)
        return Ask(ask.path, {**ask.body, **fields.get(kind, {})}, kind)

    def trace(self, arrivals: Sequence[Arrival]) -> list[Ask]:
        """A request for each arrival, with a text and a limit of about its lengths."""
        lengths = [(one.prompt_tokens, one.output_tokens) for one in arrivals]
        return [
            self.plain(self.source.of_length(prompt, index), max(1, output))
            for index, (prompt, output) in enumerate(lengths)
        ]


def blocks(arms: Sequence[Arm], loads: Sequence[float], repeats: int) -> Iterator[Block]:
    """Load by load, repeat by repeat, the arms taking turns within each repeat."""
    order = [(load, repeat, arm) for load in loads for repeat in range(repeats) for arm in turns(arms, repeat)]
    for number, (load, repeat, arm) in enumerate(order):
        yield Block(number, arm, load, repeat)


def outlook(arms: int, asks: Iterable[Sequence[Ask]], repeats: int) -> str:
    """How much a run will ask for, and how it could be less. asks: of each load."""
    limits = [ask.body["max_tokens"] for several in asks for ask in several] * (arms * repeats)
    return (
        f"{len(limits):,} answers, {sum(limits):,} tokens at most in all; "
        "fewer of --concurrency, --rounds, --repeats or --max-tokens make it shorter"
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How an arm answered so many users at once. first: mean seconds to a first token. token: of each later one."""

    users: int
    first: float
    token: float

    @staticmethod
    def of(samples: Sequence[Sample], users: int) -> Pace | None:
        """None where no answer came whole."""
        whole = [one for one in samples if not one.error and one.first]
        if not whole:
            return None
        later = sum(max(0, one.output_tokens - 1) for one in whole)
        first = sum(one.first - one.start for one in whole) / len(whole)
        return Pace(users, first, sum(one.end - one.first for one in whole) / max(1, later))

    def seconds(self, asks: Sequence[Ask]) -> float:
        """Of a turn in which each answer is as long as it may be, were no more written a second than by now."""
        return sum(self.first + (ask.max_tokens - 1) * self.token for ask in asks) / self.users


def time_left(todo: Iterable[Block], asks: Mapping[float, Sequence[Ask]], paces: Mapping[str, Pace]) -> str:
    """How long these blocks take at most: were answers as long as they may be, and more users got no more tokens a
    second. paces: by arm, at the load of the first block."""
    seconds = sum(PAUSE_SECONDS + paces[block.arm.name].seconds(asks[block.load]) for block in todo)
    time = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return f"at most {time} from here"


def stages(peak: int) -> list[int]:
    """Users at once in the stages of a ramp: 1, 2, 4 ... peak ... 4, 2, 1."""
    rising = [1]
    while rising[-1] * 2 < peak:
        rising.append(rising[-1] * 2)
    rising += [peak] if peak > 1 else []
    return [*rising, *rising[-2::-1]]
