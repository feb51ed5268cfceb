"""Launches that fail midway, in place of anything that torch is asked to do: what was done before it stands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from .lazy import LazyStream

Errors = Iterator[Exception | None]
"""For every call what it raises."""


class Breaking(TorchFunctionMode):
    """Asks `errors` at every call of torch."""

    def __init__(self, errors: Errors) -> None:
        super().__init__()
        self._errors = errors

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        error = next(self._errors)
        if error is not None:
            try:
                raise error
            finally:
                del (
                    error
                )  # native code may swallow it, and a frame that names its error is a cycle with all its callers
        return func(*args, **(kwargs or {}))


def now_and_then(rng: random.Random, kinds: Sequence[type[Exception]], usual: int, most: int) -> Errors:
    """At most so many errors, one in about `usual` calls."""
    while True:
        broken = most and rng.random() * usual < 1
        most -= bool(broken)
        yield rng.choice(kinds)("broken") if broken else None


def once(at: int, error: Exception) -> Errors:
    """The error, in place of the call of that number; the first is 0."""
    for _ in range(at):
        yield None
    yield error
    while True:
        yield None


class BreakingStream(LazyStream):
    """Runs launches late, in order, and lets them break."""

    def __init__(self, rng: random.Random, errors: Errors) -> None:
        super().__init__(rng)
        self._breaking = Breaking(errors)

    def launch(self, work: Callable[[], None]) -> None:
        def breakable() -> None:
            with self._breaking:
                work()

        super().launch(breakable)
