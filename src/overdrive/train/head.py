"""The head that is trained: its config and weights. Must never know data, loss or optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from overdrive.draft.eagle3.config import HeadConfig
from overdrive.errors import OverdriveError
from overdrive.model.config import ModelConfig
from overdrive.model.rope import rope_tables
from overdrive.train.options import HeadOptions
from overdrive.train.unroll import Tables, unroll
from overdrive.train.vocabulary import offsets

_LAYERS = 7  # the least that have the usual taps


class Head:
    """Trainable weights, named as in draft/eagle3/checkpoint.py, in float32 or better; arithmetic runs in `dtype`.

    draft_ids: [draft_vocab] int64, ascending. positions: longest conversation, unrolled steps included.
    tap_scale: [3 * target_hidden], what taps are multiplied with before fc, as far as training is concerned; a
    checkpoint's fc has it in its columns. The residual stream has dimensions a hundred times larger than others, and
    steps of one size for all columns (Adam's) would be far too large for some and too small for others.
    """

    def __init__(
        self,
        config: HeadConfig,
        weights: dict[str, Tensor],
        draft_ids: Tensor,
        tap_scale: Tensor,
        dtype: torch.dtype,
        positions: int,
    ) -> None:
        self.config, self.weights, self.draft_ids, self.dtype = config, weights, draft_ids, dtype
        self.tap_scale = tap_scale
        cos, sin = rope_tables(config.rope, config.head_dim, positions, dtype)
        self._tables = Tables(cos.to(draft_ids.device), sin.to(draft_ids.device))

    def unroll(self, embedded: Tensor, taps: Tensor, steps: int) -> Iterator[Tensor]:
        """See `unroll.unroll`; weights are rounded to `dtype` once for all steps."""
        rounded = {name: weight.to(self.dtype) for name, weight in self.weights.items() if name != "lm_head.weight"}
        return unroll(self.config, rounded, embedded, taps * self.tap_scale.to(self.dtype), self._tables, steps)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint of the head holds."""
        return self.weights | {
            "fc.weight": self.weights["fc.weight"] * self.tap_scale,
            "d2t": offsets(self.draft_ids),
        }


def head_config(target: ModelConfig, options: HeadOptions) -> HeadConfig:
    """One layer as wide as the target's. Raises OverdriveError for options that do not fit it."""
    _check(target, options)
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


def _check(target: ModelConfig, options: HeadOptions) -> None:
    if not 0 < options.draft_vocab <= target.vocab:
        raise OverdriveError(
            f"--draft-vocab {options.draft_vocab}: it must be within 1 .. {target.vocab}, the target's ids"
        )
    if options.mlp < 0:
        raise OverdriveError(f"--mlp {options.mlp} must be at least 0")
    if not -1 <= options.start_layer < target.layers:
        raise OverdriveError(
            f"--start-layer {options.start_layer} is not within -1 .. {target.layers - 1}: the target has "
            f"{target.layers} layers"
        )
