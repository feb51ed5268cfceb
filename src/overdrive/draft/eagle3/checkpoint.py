"""A head's tensors, from either published layout into one set of names, and back out in SpecForge's.

    fc.weight [H, n * Ht]            n taps of width Ht
    fc_norm.{tap}.weight [Ht]        with fc_norm
    embed_tokens.weight [V, H]       with own_embedding
    layers.{i}.*                     decoder layers; layer 0 reads [embedding; feature], 2H, and has a hidden_norm
    norm.weight [H], lm_head.weight [Vd, H]
    d2t [Vd] int64                   target id = d + d2t[d]; absent where both vocabularies are the same

Knows files and shapes; must never know a device or how the network computes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from overdrive.draft.eagle3.config import EMBEDDING, HeadConfig
from overdrive.errors import OverdriveError
from overdrive.model.assemble import check_tensors
from overdrive.model.config import ModelConfig
from overdrive.model.safetensors_folder import SINGLE, SafetensorsFolder

_SPECFORGE, _SPECULATORS = "midlayer.", "layers.0."
# Tables the config says, and what training tools leave in: the target's own norm and head.
_REDUNDANT = ("rotary_emb.inv_freq", "verifier_norm.weight", "verifier_lm_head.weight")


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """A head as read: config and tensors by the names above, in the file's own floating-point type."""

    config: HeadConfig
    tensors: Mapping[str, Tensor]


def expected_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a head, `d2t` left out."""
    hidden = config.hidden
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, len(config.taps) * config.target_hidden)}
    if config.fc_norm:
        shapes |= {f"fc_norm.{tap}.weight": (config.target_hidden,) for tap in range(len(config.taps))}
    if config.own_embedding:
        shapes[EMBEDDING] = (config.vocab, hidden)
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in _layer_shapes(config, layer).items()}
    return shapes | {"norm.weight": (hidden,), "lm_head.weight": (config.draft_vocab, hidden)}


def _layer_shapes(config: HeadConfig, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, mlp = config.hidden, config.mlp
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    inputs = hidden if layer else 2 * hidden
    norms: dict[str, tuple[int, ...]] = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    if layer == 0:
        norms["hidden_norm"] = (hidden,)
    return norms | {
        "self_attn.q_proj": (queries, inputs),
        "self_attn.k_proj": (keys, inputs),
        "self_attn.v_proj": (keys, inputs),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }


def read(folder: Path, target: ModelConfig) -> HeadCheckpoint:
    """Config and weights of a head for `target`, whichever layout it has.

    Raises OverdriveError, one line, for a head that does not fit or is damaged; pickled weights are never opened.
    """
    config = HeadConfig.from_folder(folder, target)
    files = SafetensorsFolder(folder)
    stored = {_canonical(name): name for name in files.shapes}
    if not any(name.startswith(_SPECULATORS) for name in stored):
        raise OverdriveError(
            f"head {folder} has an unknown layout: no tensor's name begins with {_SPECFORGE} or {_SPECULATORS}"
        )
    _check_shapes(config, files, stored)
    tensors = {name: files.tensor(stored[name]) for name in expected_shapes(config)}
    for name, tensor in tensors.items():
        if not tensor.float().isfinite().all():  # its drafts would never be right, and nothing would say why
            raise OverdriveError(f"head {folder}: tensor {stored[name]} holds values that are not finite")
    if "d2t" in stored:
        tensors["d2t"] = files.stored(stored["d2t"])
        _check_ids(config, tensors["d2t"], files.stored(stored["t2d"]) if "t2d" in stored else None, f"head {folder}")
    return HeadCheckpoint(config, tensors)


def _canonical(name: str) -> str:
    name = name.removeprefix("model.")
    return _SPECULATORS + name.removeprefix(_SPECFORGE) if name.startswith(_SPECFORGE) else name


def _specforge(name: str) -> str:
    return _SPECFORGE + name.removeprefix(_SPECULATORS) if name.startswith(_SPECULATORS) else name


def _check_shapes(config: HeadConfig, files: SafetensorsFolder, stored: Mapping[str, str]) -> None:
    """Compare names and shapes with the config's, in the words of the file."""
    flat = any(_SPECFORGE in name for name in stored.values())

    def spelled(name: str) -> str:
        return stored.get(name) or (_specforge(name) if flat else name)

    expected = {spelled(name): shape for name, shape in expected_shapes(config).items()}
    if config.draft_vocab < config.vocab or "d2t" in stored:
        expected[spelled("d2t")] = (config.draft_vocab,)
    if "t2d" in stored:
        expected[stored["t2d"]] = (config.vocab,)
    check_tensors(files.file_of, expected, files.shapes, _REDUNDANT)


def _check_ids(config: HeadConfig, d2t: Tensor, t2d: Tensor | None, name: str) -> None:
    """Every draft id means a target id of its own, and `t2d` [V] marks just those."""
    if d2t.dtype not in (torch.int64, torch.int32):
        raise OverdriveError(f"{name}: d2t is of type {d2t.dtype}; it must hold whole numbers")
    ids = target_ids(d2t)
    outside = ((ids < 0) | (ids >= config.vocab)).nonzero()
    if len(outside):
        draft = int(outside[0])
        raise OverdriveError(
            f"{name}: d2t maps draft id {draft} to target id {int(ids[draft])}; the target has {config.vocab} ids"
        )
    times = torch.bincount(ids, minlength=config.vocab)
    if int(times.max()) > 1:
        raise OverdriveError(f"{name}: d2t maps several draft ids to target id {int(times.argmax())}")
    if t2d is None:
        return
    differing = (t2d.bool() != (times > 0)).nonzero()
    if len(differing):
        raise OverdriveError(f"{name}: t2d and d2t disagree about target id {int(differing[0])}")


def target_ids(d2t: Tensor) -> Tensor:
    """The target's id of each draft id, [Vd] int64, from the stored offsets."""
    return torch.arange(len(d2t)) + d2t.long()


def write(folder: Path, config: HeadConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a head in SpecForge's layout (config.json and model.safetensors in bf16), which SGLang and vLLM load.

    tensors: by the names above; `t2d` is made from `d2t`. Both files appear whole or not at all. Raises OverdriveError
    for tensors that are not those of the config.
    """
    weights = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    check_tensors(lambda name: folder / SINGLE, expected_shapes(config), found, ())
    stored = {_specforge(name): tensor.detach().to("cpu", torch.bfloat16) for name, tensor in weights.items()}
    if "d2t" in tensors:
        stored |= _id_maps(config, tensors["d2t"], f"head {folder}")
    elif config.draft_vocab != config.vocab:
        raise OverdriveError(f"head {folder}: d2t is missing, with {config.draft_vocab} of {config.vocab} ids drafted")
    folder.mkdir(parents=True, exist_ok=True)
    parts = folder / f"{SINGLE}.part", folder / "config.json.part"
    save_file({name: tensor.contiguous().clone() for name, tensor in stored.items()}, parts[0], {"format": "pt"})
    parts[1].write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    os.replace(parts[0], folder / SINGLE)
    os.replace(parts[1], folder / "config.json")


def _id_maps(config: HeadConfig, d2t: Tensor, name: str) -> dict[str, Tensor]:
    """`d2t` and `t2d` as other engines expect them: int64 offsets, and a bool for every target id."""
    if tuple(d2t.shape) != (config.draft_vocab,):
        raise OverdriveError(f"{name}: d2t has shape {list(d2t.shape)}, but its config means [{config.draft_vocab}]")
    d2t = d2t.detach().cpu()
    _check_ids(config, d2t, None, name)
    t2d = torch.zeros(config.vocab, dtype=torch.bool)
    t2d[target_ids(d2t)] = True
    return {"d2t": d2t.long(), "t2d": t2d}
