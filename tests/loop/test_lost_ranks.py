"""An engine that loses a rank: every request has exactly one end, which says so, and the engine's process can end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from overdrive.device.stream import InlineStream
from overdrive.engine_process import _Served
from overdrive.policy.controller import FixedDrafts
from overdrive.types import FinishReason, SamplingParams
from overdrive.wire import Batch, Submit, Tokens

from .tiny_drafters import ngram
from .tiny_engine import tiny_bench
from .whole import whole

REASON = "rank 1 ended unexpectedly (signal SIGKILL)"


class Others:
    """Loses a rank after so many looks at it."""

    def __init__(self, looks: int) -> None:
        self._left = looks

    @property
    def failure(self) -> str:
        self._left -= 1
        return REASON if self._left < 0 else ""


@dataclass
class Link:
    """Delivers everything at once, and keeps what is sent."""

    incoming: list[Any]
    sent: list[Tokens] = field(default_factory=list)

    def poll(self, seconds: float) -> list[Any]:
        messages, self.incoming = self.incoming, []
        return messages

    def send(self, message: Any) -> None:
        if isinstance(message, Batch):
            self.sent += message.tokens


def test_every_request_ends_once_with_the_reason() -> None:
    """Those that run, those that wait, and those whose steps are under way."""
    bench = tiny_bench(InlineStream(), FixedDrafts(3), ngram, max_rows=2)
    engine = whole(bench, Others(looks=9))
    params = SamplingParams(max_tokens=60)
    link: Any = Link([Submit(f"r{i}", [i, 2, 3], params, 0.0) for i in range(5)])
    _Served(engine, link).run()
    ends = [message for message in link.sent if message.finish is not None]
    assert sorted(message.id for message in ends) == [f"r{i}" for i in range(5)]
    assert {(message.finish, message.error) for message in ends} == {(FinishReason.ERROR, REASON)}
    assert any(message.ids for message in link.sent)
