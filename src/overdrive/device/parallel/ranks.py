"""What ranks do together, as the rest of the device layer sees it: three operations on the stream, and their order.

Every rank calls the same operations with tensors of the same shapes in the same order, on its own stream. Knows nothing
of models, steps or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
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

    def close(self) -> None:
        """Let go of the connections, without waiting for ranks that may be gone."""
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

    def close(self) -> None:
        """There are no connections."""


ALONE = Alone()


def share_packed(tensors: Sequence[Tensor], broadcast: Callable[[Tensor], object]) -> None:
    """`Ranks.share` in one message. broadcast: writes rank 0's values into one contiguous tensor."""
    if len(tensors) == 1:
        broadcast(tensors[0])
        return
    packed = torch.cat([tensor.view(-1) for tensor in tensors])
    broadcast(packed)
    for tensor, part in zip(tensors, packed.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def beside_each_other(parts: Tensor, count: int) -> Tensor:
    """`Ranks.gather` of parts that stand one below the other: [count * N, W] -> [N, count * W]."""
    rows, width = len(parts) // count, parts.shape[1]
    return parts.view(count, rows, width).transpose(0, 1).reshape(rows, count * width)
