"""Which part of every weight a rank keeps, and where ranks must meet again. Knows names and shapes of checkpoints.

    q k v  gate up   their output rows, so that a rank has whole heads and its own part of the MLP
    o      down      their input columns, to match; each rank's product is a summand, the bias is rank 0's
    head             rows of the vocabulary, zero rows behind the last; logits are gathered
    embedding, norms whole

A `Shard` of one rank keeps everything and meets nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.errors import OverdriveError
from overdrive.model.config import ModelConfig
from overdrive.model.transformer import Linear

if TYPE_CHECKING:
    from overdrive.model.assemble import Blocks, Checkpoint

_BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_COLUMNS = ("o_proj", "down_proj")


class SummedLinear:
    """`Linear` whose ranks hold columns of the weight: the sum of their products."""

    __slots__ = ("_linear", "_ranks")

    def __init__(self, linear: Linear, ranks: Ranks) -> None:
        self._linear = linear
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self._ranks.sum(self._linear(x))


class GatheredLinear:
    """`Linear` whose ranks hold rows of the weight: their outputs side by side, of which the first `width` count."""

    __slots__ = ("_linear", "_ranks", "_width")

    def __init__(self, linear: Linear, ranks: Ranks, width: int) -> None:
        self._linear = linear
        self._ranks = ranks
        self._width = width

    def __call__(self, x: Tensor) -> Tensor:
        return self._ranks.gather(self._linear(x))[:, : self._width].contiguous()  # a copy only where rows were padded


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a model of `config`, which is the whole model's."""

    config: ModelConfig
    ranks: Ranks = ALONE

    @property
    def local(self) -> ModelConfig:
        """The config that this rank's layers have: fewer heads, a narrower MLP; the vocabulary stays whole.

        Raises OverdriveError, one line, where the model cannot be divided by so many ranks.
        """
        config, count = self.config, self.ranks.count
        check_divisible(config, count)
        return replace(config, heads=config.heads // count, kv_heads=config.kv_heads // count, mlp=config.mlp // count)

    def checkpoint(self, whole: Checkpoint) -> Checkpoint:
        """The weights that this rank keeps, under their usual names."""
        return whole if self.ranks.count == 1 else ShardedCheckpoint(whole, self)

    def summed(self, linear: Linear) -> Linear:
        """The product with all columns, of one with this rank's."""
        return linear if self.ranks.count == 1 else SummedLinear(linear, self.ranks)

    def gathered(self, linear: Linear) -> Linear:
        """The head over the whole vocabulary, of one over this rank's rows."""
        return linear if self.ranks.count == 1 else GatheredLinear(linear, self.ranks, self.config.vocab)

    def part(self, x: Tensor, dim: int) -> Tensor:
        """This rank's equal part of a dimension: a copy, which does not keep the whole alive."""
        size = x.shape[dim] // self.ranks.count
        return x.narrow(dim, self.ranks.rank * size, size).clone(memory_format=torch.contiguous_format)


class ShardedCheckpoint:
    """`Checkpoint` with a rank's part of each weight. Quantised matrices become float32 ones."""

    def __init__(self, whole: Checkpoint, shard: Shard) -> None:
        self._whole = whole
        self._shard = shard

    def tensor(self, name: str) -> Tensor:
        """Biases of divided rows are divided; those of summed products are rank 0's, zeros elsewhere; others whole."""
        tensor, kind = self._whole.tensor(name), _kind(name)
        if name.endswith(".bias") and kind in _BY_ROWS:
            return self._shard.part(tensor, 0)
        if name.endswith(".bias") and kind in _BY_COLUMNS and self._shard.ranks.rank:
            return torch.zeros_like(tensor)
        return tensor

    def matrix(self, name: str) -> Tensor | Blocks:
        found, kind = self._whole.matrix(name), _kind(name)
        whole = found if isinstance(found, Tensor) else found.dense()
        if kind in _BY_ROWS:
            return self._shard.part(whole, 0)
        if kind in _BY_COLUMNS:
            return self._shard.part(whole, 1)
        return self._of_head(whole)

    def _of_head(self, whole: Tensor) -> Tensor:
        """Rows of the vocabulary, as many on every rank."""
        ranks = self._shard.ranks
        size = -(-len(whole) // ranks.count)
        mine = whole[ranks.rank * size : (ranks.rank + 1) * size]
        return torch.nn.functional.pad(mine, (0, 0, 0, size - len(mine)))


def _kind(name: str) -> str:
    """Of "model.layers.3.self_attn.q_proj.weight": "q_proj"."""
    return name.split(".")[-2]


def check_divisible(config: ModelConfig, ranks: int) -> None:
    """Raises OverdriveError, naming both numbers, where heads or MLP do not come out even on `ranks` ranks."""
    sizes = {"key-value heads": config.kv_heads, "MLP columns": config.mlp}  # query heads are a multiple of the former
    for what, size in sizes.items():
        if size % ranks:
            fits = [n for n in range(1, ranks) if not any(s % n for s in sizes.values())]
            raise OverdriveError(
                f"--tensor-parallel {ranks}: the model's {size} {what} cannot be divided by {ranks}; take {fits[-1]}"
            )
