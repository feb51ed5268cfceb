"""From a head's tensors to an `EagleHead` in the form that its target's weights have.

Which tensors share one matrix product is known here; how a product's weight is stored is the `Form`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from overdrive.draft.eagle3.checkpoint import expected_shapes, read, target_ids
from overdrive.draft.eagle3.config import EMBEDDING, HeadConfig
from overdrive.draft.eagle3.network import EagleHead, HeadNorms
from overdrive.model.assemble import Form
from overdrive.model.transformer import Layer, Linear, Transformer
from overdrive.progress import Progress

CPU = torch.device("cpu")
DUMMY_VOCAB = 32000


def load_head(folder: Path, target: Transformer, form: Form, progress: Progress) -> EagleHead:
    """The head in `folder`, its linears in `form`, reporting progress under the label "draft network".

    Raises OverdriveError, one line that names both sides, for a head that does not fit the target or is damaged.
    """
    checkpoint = read(folder, target.config)
    return assemble_head(checkpoint.config, checkpoint.tensors, target, form, progress)


def assemble_head(
    config: HeadConfig, tensors: Mapping[str, Tensor], target: Transformer, form: Form, progress: Progress
) -> EagleHead:
    """Build a head from tensors by the names of `checkpoint`, sharing the target's embedding where it has the same."""
    build = _Assembly(tensors, form)
    layers = []
    for index in range(config.layers):
        layers.append(build.layer(index))
        progress("draft network", index + 1, config.layers + 2)
    fc, lm_head = build.linear("fc"), form.make_head([tensors["lm_head.weight"]], None)
    progress("draft network", config.layers + 1, config.layers + 2)
    fc_norms = tuple(build.dense(f"fc_norm.{tap}") for tap in range(len(config.taps))) if config.fc_norm else ()
    norms = HeadNorms(build.dense("layers.0.hidden_norm"), build.dense("norm"), fc_norms)
    ids = target_ids(tensors["d2t"].cpu()) if "d2t" in tensors else torch.arange(config.draft_vocab)
    embedding = _embedding(tensors, target, form)
    progress("draft network", config.layers + 2, config.layers + 2)
    return EagleHead(config, embedding, fc, layers, norms, lm_head, ids.to(form.device), form.ops, target.max_model_len)


def dummy_head(target: Transformer, form: Form, seed: int, progress: Progress) -> EagleHead:
    """A head with random weights in the shape that published ones have: a layer of the target's own, three taps, a
    vocabulary of 32,000 ids. What it drafts is worth nothing; what it costs is what a trained head costs.
    """
    config = HeadConfig.for_target(target.config, min(DUMMY_VOCAB, target.config.vocab))
    tensors = random_tensors(config, seed, form.device)
    return assemble_head(config, tensors, target, form, progress)


def random_head(config: HeadConfig, form: Form, target: Transformer, seed: int) -> EagleHead:
    """A head with weights drawn from `seed` (`random_tensors`): for tests and for measuring what a pass costs."""
    tensors = random_tensors(config, seed, form.device)
    return assemble_head(config, tensors, target, form, lambda label, done, total: None)


def random_tensors(config: HeadConfig, seed: int, device: torch.device = CPU) -> dict[str, Tensor]:
    """Weights by the names of `checkpoint`, float32, the same for every run. Linears have variance 1 / in.

    A reduced draft vocabulary is a random choice of target ids, in ascending order. device: where they are drawn;
    another kind of device draws others.
    """
    generator = torch.Generator(device).manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=generator, device=device)
        tensors[name] = noise.mul_(0.1).add_(1.0) if len(shape) == 1 else noise.mul_(shape[-1] ** -0.5)
    if config.draft_vocab < config.vocab:
        ids = torch.randperm(config.vocab, generator=generator, device=device)[: config.draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(config.draft_vocab, device=device)
    return tensors


def _embedding(tensors: Mapping[str, Tensor], target: Transformer, form: Form) -> Tensor:
    """The head's own embedding, unless it has none or a copy of the target's, as many published heads do."""
    if EMBEDDING not in tensors:
        return target.embedding
    own = tensors[EMBEDDING].to(form.device, form.dtype)
    return target.embedding if torch.equal(own, target.embedding) else own


@dataclass(frozen=True, slots=True)
class _Assembly:
    tensors: Mapping[str, Tensor]
    form: Form

    def dense(self, name: str) -> Tensor:
        return self.tensors[f"{name}.weight"].to(self.form.device, self.form.dtype)

    def linear(self, *names: str) -> Linear:
        """One product for the named linears, which read the same input."""
        return self.form.make_linear([self.tensors[f"{name}.weight"] for name in names], None)

    def layer(self, index: int) -> Layer:
        prefix = f"layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        return Layer(
            input_norm=self.dense(prefix + "input_layernorm"),
            qkv=self.linear(attention + "q_proj", attention + "k_proj", attention + "v_proj"),
            q_norm=None,
            k_norm=None,
            output=self.linear(attention + "o_proj"),
            post_norm=self.dense(prefix + "post_attention_layernorm"),
            gate_up=self.linear(mlp + "gate_proj", mlp + "up_proj"),
            down=self.linear(mlp + "down_proj"),
        )
