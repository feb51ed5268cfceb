"""When requests must have ended: found late by one turn of the engine at most, without a look at each in every turn.

Knows requests and times of one clock that never goes back; never what a turn does.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from overdrive.request import Request
from overdrive.types import Finish, FinishReason

TOO_LATE = 504


class Deadlines:
    """Keeps one number: no request that was noted and lives must end before `_next`.

    So finished requests are nothing to be remembered or forgotten, and a turn costs one comparison until a deadline
    passes, that of a finished one included.
    """

    def __init__(self) -> None:
        self._next = inf

    def note(self, request: Request) -> None:
        """A request has arrived."""
        self._next = min(self._next, request.deadline)

    def passed(self, living: Iterable[Request], now: float) -> list[Request]:
        """Those of `living` (every request that was noted and has not finished) whose time is over."""
        if now < self._next:
            return []
        living = list(living)
        self._next = min((request.deadline for request in living if request.deadline > now), default=inf)
        return [request for request in living if request.deadline <= now]


def too_late(request: Request) -> Finish:
    """How such a request ends."""
    stage = f"{request.output_len} tokens" if request.output_len else "no token"
    message = f"the answer was not complete {request.patience:g} seconds after its request, with {stage} written"
    return Finish(FinishReason.ERROR, message=message, status=TOO_LATE)
