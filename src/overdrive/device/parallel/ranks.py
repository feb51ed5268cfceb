"""What ranks do together, as the rest of the device layer sees it: three operations on the stream, and their order.

Every rank calls the same operations with tensors of the same shapes in the same order, on its own stream. Knows nothing
of models, steps or processes.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """One rank's end. rank: 0 leads. count: of all ranks.

    Nothing here waits on the host. On CUDA every operation can be captured into a graph, after it ran once without.
    """

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's x (contiguous, any shape), on all ranks: x itself, changed, or a new tensor."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Every rank's x [N, W] (contiguous) side by side, in the order of ranks: a new [N, count * W] on all ranks."""
        ...

    def share(self, *tensors: Tensor) -> None:
        """Rank 0's values into every rank's tensors (contiguous, int64), in place."""
        ...


class Alone:
    """`Ranks` of a single rank: nothing to do."""

    rank = 0
    count = 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x

    def share(self, *tensors: Tensor) -> None:
        """Everyone has them."""


ALONE = Alone()
