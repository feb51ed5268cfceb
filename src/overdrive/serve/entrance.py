"""What requests may occupy before the engine has them: their bodies are held while they arrive, are read and wait.

Together they may take so many bytes, however many clients there are; beyond it the answer is 429 at once.
"""

from __future__ import annotations

from overdrive.errors import BadRequest

LEAST_BYTES = 16 << 10  # what a request counts beside its body: headers, objects, its place in a queue
BODIES = 32  # of the largest size may arrive at the same time


class Entrance:
    """Bytes held by requests on their way to the engine.

    preparing: requests that are whole and will be submitted once their templates and texts are worked through. Those
    whose bodies still arrive are not among them: a crowd of slow clients must not fill the queue with nothing.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._room = BODIES * max(max_body_bytes, 1 << 20)
        self.held = 0
        self.preparing = 0

    def take(self, count: int) -> None:
        """Raises BadRequest (429) where there is no room for `count` bytes more."""
        if self.held + count > self._room:
            raise BadRequest("too many requests arrive at once, try again later", "", "too_busy", 429)
        self.held += count


class Hold:
    """One request's part of the entrance."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self._bytes = 0
        self._preparing = False

    def add(self, count: int) -> None:
        """`count` bytes have arrived. Raises BadRequest (429)."""
        count += 0 if self._bytes else LEAST_BYTES
        self._entrance.take(count)
        self._bytes += count

    def prepare(self) -> None:
        """The request is whole."""
        self._preparing = True
        self._entrance.preparing += 1

    def release(self) -> None:
        """The request is the engine's now, or over."""
        self._entrance.held -= self._bytes
        self._entrance.preparing -= self._preparing
        self._bytes, self._preparing = 0, False
