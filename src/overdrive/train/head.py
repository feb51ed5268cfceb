"""The head that is trained: its config, weights and where they start. Must never know data, loss or optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from overdrive.draft.eagle3.checkpoint import expected_shapes
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.errors import OverdriveError
from overdrive.model.config import ModelConfig
from overdrive.model.rope import rope_tables
from overdrive.train.options import HeadOptions
from overdrive.train.target import Teacher
from overdrive.train.unroll import LAYER, Tables, unroll
from overdrive.train.vocabulary import offsets

_SPREAD = 0.02  # standard deviation of first weights, as Llamas start
_LAYERS = 7  # the least that have the usual taps


class Head:
    """Trainable weights, named as in draft/eagle3/checkpoint.py, in float32 or better; arithmetic runs in `dtype`.

    draft_ids: [draft_vocab] int64, ascending. positions: longest conversation, unrolled steps included.
    """

    def __init__(
        self, config: HeadConfig, weights: dict[str, Tensor], draft_ids: Tensor, dtype: torch.dtype, positions: int
    ) -> None:
        self.config, self.weights, self.draft_ids, self.dtype = config, weights, draft_ids, dtype
        cos, sin = rope_tables(config.rope, config.head_dim, positions, dtype)
        self._tables = Tables(cos.to(draft_ids.device), sin.to(draft_ids.device))

    def unroll(self, embedded: Tensor, taps: Tensor, steps: int) -> Iterator[Tensor]:
        """See `unroll.unroll`; weights are rounded to `dtype` once for all steps."""
        rounded = {name: weight.to(self.dtype) for name, weight in self.weights.items() if name != "lm_head.weight"}
        return unroll(self.config, rounded, embedded, taps, self._tables, steps)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint of the head holds."""
        return self.weights | {"d2t": offsets(self.draft_ids)}


def head_config(target: ModelConfig, options: HeadOptions) -> HeadConfig:
    """One layer as wide as the target's. Raises OverdriveError for options that do not fit it."""
    changes: dict[str, Any] = {"mlp": options.mlp} if options.mlp else {}
    if target.layers < _LAYERS:
        changes["taps"] = (0, target.layers // 2, target.layers)  # for toys, which have no low, middle and high
    return HeadConfig.for_target(
        target,
        options.draft_vocab,
        norm_before_residual=options.norm_before_residual,
        norm_output=options.norm_output,
        fc_norm=options.fc_norm,
        **changes,
    )


def initial_weights(
    config: HeadConfig, teacher: Teacher, draft_ids: Tensor, options: HeadOptions, seed: int
) -> dict[str, Tensor]:
    """Leaves that require gradients, on the target's device: random, but for the target's own final norm and head.

    With `start_layer` attention and MLP start as that layer's and fc passes the highest tap on.
    """
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Tensor] = {}
    for name, shape in expected_shapes(config).items():
        values[name] = torch.ones(shape) if len(shape) == 1 else _SPREAD * torch.randn(shape, generator=generator)
    values["lm_head.weight"] = teacher.head[draft_ids]
    values["norm.weight"] = teacher.checkpoint.tensor("model.norm.weight")
    if options.start_layer >= 0:
        values |= _from_layer(config, teacher, options.start_layer, values)
    exact = teacher.head.dtype
    return {name: value.to(teacher.device, exact, copy=True).requires_grad_() for name, value in values.items()}


def _from_layer(config: HeadConfig, teacher: Teacher, layer: int, drawn: dict[str, Tensor]) -> dict[str, Tensor]:
    """The target's layer in the head's places. Only the embedding's half of q, k and v stays as drawn."""
    if layer >= teacher.config.layers:
        raise OverdriveError(f"start_layer {layer} is not within 0 .. {teacher.config.layers - 1}, the target's layers")
    prefix = f"model.layers.{layer}."
    names = [f"self_attn.{n}_proj.weight" for n in "qkvo"] + [f"mlp.{n}_proj.weight" for n in ("gate", "up", "down")]
    taken = {name: teacher.checkpoint.tensor(prefix + name) for name in names}
    for name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"):
        taken[name] = torch.cat((drawn[LAYER + name][:, : -config.hidden], taken[name]), dim=1)
    taken["post_attention_layernorm.weight"] = teacher.checkpoint.tensor(f"{prefix}post_attention_layernorm.weight")
    taken["hidden_norm.weight"] = teacher.checkpoint.tensor(f"{prefix}input_layernorm.weight")
    values = {LAYER + name: value for name, value in taken.items()}
    for name, value in values.items():
        if value.shape != drawn[name].shape:
            raise OverdriveError(
                f"a head whose {name} is {list(drawn[name].shape)} cannot start from layer {layer}: {list(value.shape)}"
            )
    values["fc.weight"] = torch.zeros_like(drawn["fc.weight"])
    values["fc.weight"][:, -config.hidden :] = torch.eye(config.hidden)
    return values
