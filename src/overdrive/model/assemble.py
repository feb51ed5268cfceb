"""From named tensors to a Transformer: which tensors a config needs, and which of them share one matrix product.

Names are those of Hugging Face checkpoints. Knows nothing of files; what form a linear's weight takes on the device is
decided by the `LinearFactory` it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.errors import OverdriveError
from overdrive.model.config import ModelConfig
from overdrive.model.ops import Ops
from overdrive.model.shard import Shard
from overdrive.model.transformer import DenseLinear, Layer, Linear, Transformer
from overdrive.progress import Progress


class Blocks(Protocol):
    """A matrix kept in its file's quantised form."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        ...

    def dense(self) -> Tensor:
        """The weight [out, in] in float32."""
        ...


class Checkpoint(Protocol):
    """Named weights, however they are stored. Raises OverdriveError for what it cannot read."""

    def tensor(self, name: str) -> Tensor:
        """A weight in floating point, in the checkpoint's own dtype (float32 for a quantised one)."""
        ...

    def matrix(self, name: str) -> Tensor | Blocks:
        """A weight of a linear [out, in], quantised if the checkpoint has it so."""
        ...


LinearFactory = Callable[[Sequence[Tensor | Blocks], Tensor | None], Linear]
"""make_linear(weights, bias): one product whose output is that of each weight [out_i, in] in turn, plus bias or not."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the weights become on the device: dtype and place of activations, linears, element-wise operations.

    make_head: as `make_linear`, for the product whose results are scores; they may be wider than `dtype`.
    """

    dtype: torch.dtype
    device: torch.device
    make_linear: LinearFactory
    ops: Ops
    make_head: LinearFactory


def dense_factory(dtype: torch.dtype, device: torch.device) -> LinearFactory:
    """Linears as plain weights in `dtype`: the reference form."""

    def make(weights: Sequence[Tensor | Blocks], bias: Tensor | None) -> Linear:
        return DenseLinear(stack_dense(weights, dtype, device), bias)

    return make


def stack_dense(weights: Sequence[Tensor | Blocks], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The weights [out_i, in], one below the other, in `dtype` on the device; itself where one is so already.

    Each goes to its place by itself: neither the host nor the device holds all of them twice.
    """
    if len(weights) == 1:
        return dense_weight(weights[0]).to(device, dtype)
    heights = [weight.shape[0] for weight in weights]
    stacked = torch.empty((sum(heights), weights[0].shape[1]), dtype=dtype, device=device)
    for weight, place in zip(weights, stacked.split(heights), strict=True):
        place.copy_(dense_weight(weight))
    return stacked


def dense_weight(weight: Tensor | Blocks) -> Tensor:
    """The weight [out, in] in floating point, whatever form it has."""
    return weight if isinstance(weight, Tensor) else weight.dense()


def parameter_counts(config: ModelConfig) -> tuple[int, int]:
    """How many weights of the model are in its layers' linears, and how many elsewhere (embedding, head, norms)."""
    inside, elsewhere = 0, 0
    for name, shape in expected_shapes(config).items():
        if ".layers." in name and len(shape) == 2:
            inside += math.prod(shape)
        else:
            elsewhere += math.prod(shape)
    return inside, elsewhere


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor the model reads, in the order it reads them."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab, config.hidden)}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    shapes["model.norm.weight"] = (config.hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, config.hidden)
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, mlp = config.hidden, config.mlp
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (mlp, hidden, config.mlp_bias),
        "mlp.up_proj": (mlp, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, mlp, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes | {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}


def check_tensors(
    where: Callable[[str], Path],
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    redundant: tuple[str, ...],
) -> None:
    """Compare a checkpoint's names and shapes with the config's, before anything is read.

    where: the file of a tensor, found or not. redundant: endings of names that may be there without being read.
    Raises OverdriveError naming the file and the first tensor that is missing, unexpected or of another shape.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected and not name.endswith(redundant)]
    for names, what in ((missing, "missing"), (unexpected, "not part of the model that its config describes")):
        if names:
            more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
            raise OverdriveError(f"{where(names[0])}: tensor {names[0]}{more} {what}")
    for name, shape in expected.items():
        if found[name] != shape:
            was, meant = list(found[name]), list(shape)
            raise OverdriveError(f"{where(name)}: tensor {name} has shape {was}, but its config means {meant}")


def assemble(
    config: ModelConfig,
    checkpoint: Checkpoint,
    form: Form,
    max_model_len: int,
    progress: Progress,
    ranks: Ranks = ALONE,
) -> Transformer:
    """Build the decoder, or this rank's part of it, layer by layer, reporting progress under the label "weights"."""
    shard = Shard(config, ranks)
    build = _Assembly(shard, shard.local, shard.checkpoint(checkpoint), form)
    layers = []
    for index in range(config.layers):
        layers.append(build.layer(index))
        progress("weights", index + 1, config.layers + 1)
    embedding = build.dense("model.embed_tokens.weight")
    head = shard.gathered(build.head(embedding))
    final_norm = build.dense("model.norm.weight")
    progress("weights", config.layers + 1, config.layers + 1)
    return Transformer(build.config, embedding, layers, final_norm, head, form.ops, max_model_len)


@dataclass(frozen=True, slots=True)
class _Assembly:
    shard: Shard
    config: ModelConfig  # of this rank's layers
    checkpoint: Checkpoint
    form: Form

    def dense(self, name: str) -> Tensor:
        return self.checkpoint.tensor(name).to(self.form.device, self.form.dtype)

    def linear(self, *names: str, biased: bool) -> Linear:
        """One product for the named linears, which read the same input."""
        bias = torch.cat([self.dense(f"{name}.bias") for name in names]) if biased else None
        return self.form.make_linear([self.checkpoint.matrix(f"{name}.weight") for name in names], bias)

    def head(self, embedding: Tensor) -> Linear:
        """The product that scores. A tied one whose weight is a plain tensor, and whole, is the embedding itself."""
        name = "model.embed_tokens.weight" if self.config.tied else "lm_head.weight"
        weight = self.checkpoint.matrix(name)
        if self.config.tied and isinstance(weight, Tensor) and weight.shape == embedding.shape:
            weight = embedding
        return self.form.make_head([weight], None)

    def layer(self, index: int) -> Layer:
        config, prefix = self.config, f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = (attention + "q_proj", attention + "k_proj", attention + "v_proj")
        return Layer(
            input_norm=self.dense(prefix + "input_layernorm.weight"),
            qkv=self.linear(*qkv, biased=config.qkv_bias),
            q_norm=self.dense(attention + "q_norm.weight") if config.qk_norm else None,
            k_norm=self.dense(attention + "k_norm.weight") if config.qk_norm else None,
            output=self.shard.summed(self.linear(attention + "o_proj", biased=config.output_bias)),
            post_norm=self.dense(prefix + "post_attention_layernorm.weight"),
            gate_up=self.linear(mlp + "gate_proj", mlp + "up_proj", biased=config.mlp_bias),
            down=self.shard.summed(self.linear(mlp + "down_proj", biased=config.mlp_bias)),
        )
