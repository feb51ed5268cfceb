"""One HTTP request from its head to its end, as logs, metrics and traces tell of it: times, counts and words.

Nothing that a client wrote is kept here but the id that it may give its request.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.types import Scope

from overdrive.serve.entrance import Hold
from overdrive.serve.metrics import Metrics

SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
CAUSES = {408: "slow_client", 503: "shutdown", 504: "timeout"}


@dataclass(slots=True)
class RequestRecord:
    """Times are of `time.monotonic`; 0 where a thing has not happened.

    submitted: the engine was asked. first: of the first output token. queued: seconds that its first answer waited for
    a row. finishes: answers by why they ended. failed: the status of the error that ended the others; 0: their client
    left. fault: code of the error that the client was told. hold: what it occupies before the engine has it.
    """

    id: str
    metrics: Metrics
    hold: Hold
    started: float = field(default_factory=time.monotonic)
    submitted: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finishes: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    streamed: bool = False
    fault: str = ""

    @property
    def age(self) -> float:
        """Seconds since the request's head arrived."""
        return time.monotonic() - self.started

    def submit(self) -> None:
        """The engine has been asked; what the request held until then is free."""
        self.hold.release()
        self.submitted = time.monotonic()

    def token(self, queued: float) -> None:
        """Output has arrived, of an answer that waited so long for a row."""
        if not self.first:
            self.first, self.queued = time.monotonic(), queued

    def finish(self, answers: int) -> None:
        """No more output comes; those of `answers` that have no finish will have none."""
        self.ended = time.monotonic()
        if left := answers - self.finishes.total():
            self.finishes[CAUSES.get(self.failed, "error") if self.failed else "abort"] += left
        self.metrics.tell(self, answers)


def request_id(scope: Scope) -> str:
    """The id that the client gave its request where it is harmless in logs and headers, else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return given if SANE_ID.fullmatch(given) else uuid.uuid4().hex


def record_of(request: HTTPConnection) -> RequestRecord:
    """The record of a request that `Observe` has let through."""
    record = request.scope["state"]["record"]
    assert isinstance(record, RequestRecord)
    return record
