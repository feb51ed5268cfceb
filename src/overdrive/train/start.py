"""Where a head's weights start: at random, from a layer of the target or from another head; in proportion to what it
will read.

Must never know the loss or the optimiser.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from overdrive.draft.eagle3.checkpoint import HeadCheckpoint, expected_shapes, read, target_ids
from overdrive.draft.eagle3.config import HeadConfig
from overdrive.draft.eagle3.shipped import find_head
from overdrive.errors import OverdriveError
from overdrive.model.config import ModelConfig
from overdrive.train.batches import Lesson
from overdrive.train.head import Head
from overdrive.train.options import HeadOptions
from overdrive.train.target import Teacher
from overdrive.train.unroll import ATTENTION, LAYER, MLP

SHIPPED = "shipped"

_SPREAD = 0.02  # standard deviation of first weights, as Llamas start


def new_head(
    config: HeadConfig,
    teacher: Teacher,
    draft_ids: Tensor,
    lesson: Lesson,
    options: HeadOptions,
    *,
    seed: int,
    positions: int,
) -> Head:
    """A head whose weights are leaves that require gradients, on the target's device.

    Its final norm and lm_head are the target's own. With `start_layer` attention and MLP are that layer's, and fc
    passes the highest tap on. lesson: some of the answers, to see how large the taps are.
    """
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Tensor] = {}
    for name, shape in expected_shapes(config).items():
        values[name] = torch.ones(shape) if len(shape) == 1 else _SPREAD * torch.randn(shape, generator=generator)
    values["lm_head.weight"] = teacher.head[draft_ids]
    values["norm.weight"] = teacher.checkpoint.tensor("model.norm.weight")
    rows = _tapped(teacher, config, lesson)
    size = _rms(rows[:, -config.target_hidden :], (0, 1))  # of the highest tap
    if config.fc_norm:
        rows = _normed(rows, len(config.taps))
    met = _rms(rows, 0)  # what each column of fc meets, or each weight of the norms before it
    if config.fc_norm:
        values |= {f"fc_norm.{n}.weight": 1 / part for n, part in enumerate(met.chunk(len(config.taps)))}
    if options.start_layer >= 0:
        passed = met[-config.target_hidden :] / (1 if config.fc_norm else size)
        values |= _from_layer(config, teacher, options.start_layer, values, float(size))
        values["fc.weight"] = torch.zeros_like(values["fc.weight"])
        values["fc.weight"][:, -config.target_hidden :] = passed.diag()
    scale = torch.ones_like(met) if config.fc_norm else 1 / met
    exact = teacher.head.dtype
    weights = {name: value.to(teacher.device, exact, copy=True).requires_grad_() for name, value in values.items()}
    return Head(config, weights, draft_ids, scale, teacher.dtype, positions)


def head_to_go_on_from(options: HeadOptions, target: ModelConfig, fingerprint: str) -> HeadCheckpoint:
    """The head that `start_head` means. Raises OverdriveError where there is none, where it does not fit the target or
    the other options, or where training does not know its form."""
    asked = [name for name, given in asdict(options).items() if given != getattr(HeadOptions(), name)]
    if others := [f"--{name.replace('_', '-')}" for name in asked if name != "start_head"]:
        raise OverdriveError(f"--start-head brings a shape of its own: leave out {' and '.join(others)}")
    folder = find_head(target, fingerprint) if options.start_head == SHIPPED else Path(options.start_head)
    if folder is None:
        raise OverdriveError("--start-head shipped: no head comes with Overdrive for this model's weights")
    found = read(folder, target)
    if found.config.layers != 1 or found.config.own_embedding:
        raise OverdriveError(
            f"--start-head {options.start_head}: training knows heads of one layer that read the target's embedding"
        )
    return found


def continued_head(found: HeadCheckpoint, teacher: Teacher, lesson: Lesson, *, positions: int) -> Head:
    """A head that goes on from the weights of another, as `new_head` makes one. Its draft ids are that one's."""
    config, values = found.config, dict(found.tensors)
    stored = values.pop("d2t", None)
    ids = torch.arange(config.vocab) if stored is None else target_ids(stored)
    order = ids.argsort()
    values["lm_head.weight"] = values["lm_head.weight"][order]
    met = _rms(_tapped(teacher, config, lesson), 0)
    scale = torch.ones_like(met) if config.fc_norm else 1 / met
    exact = teacher.head.dtype
    weights = {name: value.to(teacher.device, exact, copy=True) for name, value in values.items()}
    weights["fc.weight"] /= scale
    for weight in weights.values():
        weight.requires_grad_()
    return Head(config, weights, ids[order].to(teacher.device), scale, teacher.dtype, positions)


def _tapped(teacher: Teacher, config: HeadConfig, lesson: Lesson) -> Tensor:
    """Taps of the answer tokens, [N, 3 * Ht], in float32 or better."""
    taps, _ = teacher.features(lesson.ids, config.taps)
    return taps.flatten(0, 1).index_select(0, lesson.places).to(teacher.head.dtype)


def _rms(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    return x.pow(2).mean(dim).sqrt().clamp(min=1e-4)


def _normed(rows: Tensor, taps: int) -> Tensor:
    """Each tap of each token divided by its root mean square."""
    split = rows.unflatten(-1, (taps, -1))
    return (split / split.pow(2).mean(-1, keepdim=True).sqrt()).flatten(1)


def _from_layer(
    config: HeadConfig, teacher: Teacher, layer: int, drawn: dict[str, Tensor], size: float
) -> dict[str, Tensor]:
    """The target's layer in the head's places, but for the embedding's half of q, k and v, which stays as drawn.

    size: of the residual stream that this layer adds to. The head's is brought to 1, and what is added likewise.
    """

    def target(name: str) -> Tensor:
        return teacher.checkpoint.tensor(f"model.layers.{layer}.{name}.weight").float()

    taken = {name: target(f"mlp.{name}_proj") for name in ("gate", "up")}
    values = {f"{MLP}{name}_proj.weight": weight for name, weight in taken.items()}
    for name in "qkv":
        own = f"{ATTENTION}{name}_proj.weight"
        values[own] = torch.cat((drawn[own][:, : -config.hidden], target(f"self_attn.{name}_proj")), dim=1)
    values[f"{ATTENTION}o_proj.weight"] = target("self_attn.o_proj") / size
    values[f"{MLP}down_proj.weight"] = target("mlp.down_proj") / size
    values[f"{LAYER}hidden_norm.weight"] = target("input_layernorm")
    values[f"{LAYER}post_attention_layernorm.weight"] = target("post_attention_layernorm")
    for name, value in values.items():
        if value.shape != drawn[name].shape:
            raise OverdriveError(
                f"a head whose {name} is {list(drawn[name].shape)} cannot start from layer {layer}: {list(value.shape)}"
            )
    return values
