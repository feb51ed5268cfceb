"""Random weights for any config: load tests without a download, and the tiny model the laws are tested with."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.model.assemble import Form, assemble, dense_factory, expected_shapes
from overdrive.model.config import ModelConfig
from overdrive.model.ops import TorchOps
from overdrive.model.rope import RopeConfig
from overdrive.model.transformer import Transformer

CPU = torch.device("cpu")


class RandomCheckpoint:
    """Weights drawn from (seed, name): the same for every order of reading, always in float32.

    Linears have variance 1 / in, so that activations keep their size and the answers of a random model vary. device:
    where they are drawn, and where they are then; another kind of device draws others.
    """

    def __init__(self, config: ModelConfig, seed: int, device: torch.device = CPU) -> None:
        self._shapes = expected_shapes(config)
        self._seed = seed
        self._device = device

    def tensor(self, name: str) -> Tensor:
        shape = self._shapes[name]
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        noise = torch.randn(shape, generator=generator, device=self._device)
        if name.endswith("norm.weight"):
            return noise.mul_(0.1).add_(1.0)
        return noise.mul_(0.1 if name.endswith(".bias") else shape[-1] ** -0.5)

    def matrix(self, name: str) -> Tensor:
        return self.tensor(name)


def random_transformer(
    config: ModelConfig,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    max_model_len: int = 0,
    ranks: Ranks = ALONE,
) -> Transformer:
    """A CPU model of this config, or a rank's part of it, with random weights, in plain torch.

    max_model_len: 0 takes the config's limit. All ranks together have the weights that one rank has alone.
    """
    dense = dense_factory(dtype, CPU)
    form = Form(dtype, CPU, dense, TorchOps(dtype, CPU), dense)
    checkpoint = RandomCheckpoint(config, seed)
    most = max_model_len or config.max_positions
    return assemble(config, checkpoint, form, most, lambda label, done, total: None, ranks)


def tiny_config(vocab: int = 64, **changes: Any) -> ModelConfig:
    """A decoder of two small layers whose forward pass takes about a millisecond; `changes` replace any field."""
    fields: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "vocab": vocab,
        "hidden": 32,
        "mlp": 64,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "max_positions": 512,
        "norm_eps": 1e-5,
        "rope": RopeConfig(theta=10000.0),
        "eos_ids": (1,),
    }
    return ModelConfig(**(fields | changes))


def tiny_transformer(dtype: torch.dtype = torch.float64, vocab: int = 64, seed: int = 0, **changes: Any) -> Transformer:
    """`tiny_config` with random weights. Embedding and head are separate, so a token does not predict itself."""
    return random_transformer(tiny_config(vocab, **changes), seed, dtype)
