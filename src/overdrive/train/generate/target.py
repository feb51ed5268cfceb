"""The target as a generator: which weights in which form, on which device.

CUDA runs plain torch in bfloat16 with the head's scores in float32; a CPU runs the server's own engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from overdrive.config import ModelOptions
from overdrive.errors import OverdriveError
from overdrive.model.assemble import Blocks, Form, LinearFactory, assemble, dense_factory
from overdrive.model.config import ModelConfig
from overdrive.model.ops import TorchOps
from overdrive.model.transformer import DenseLinear, Linear, Transformer
from overdrive.model.weights import locate, open_checkpoint
from overdrive.progress import Progress
from overdrive.text import ChatTemplate, Tokenizer, open_text


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a device, with what turns text into its tokens. stops: ids that end an answer."""

    config: ModelConfig
    transformer: Transformer
    tokenizer: Tokenizer
    template: ChatTemplate
    stops: tuple[int, ...]


def open_target(model: str, options: ModelOptions, device: torch.device, max_len: int, progress: Progress) -> Target:
    """Find, read and build a model in plain torch: bfloat16 on CUDA, float32 elsewhere.

    max_len: most tokens of a prompt and its answer. Raises OverdriveError, one line, for what is missing or unfit.
    """
    source = locate(model, options, progress)
    config, checkpoint = open_checkpoint(source, options)
    if max_len > config.max_positions:
        raise OverdriveError(f"{model} has a context of {config.max_positions} tokens, {max_len} are asked for")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    linears = _linears(dtype, device, config.vocab)
    form = Form(dtype, device, linears, GraphOps(dtype, device), linears)
    transformer = assemble(config, checkpoint, form, max_len, progress)
    tokenizer, template = open_text(source if source.suffix != ".json" else source.parent, options)
    return Target(config, transformer, tokenizer, template, config.eos_ids or tuple(tokenizer.eos_ids))


class GraphOps(TorchOps):
    """`TorchOps` with a shorter rotation: in a graph of a small model every kernel costs about the same."""

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)  # [T, 1, D/2]
        for x in (q, k):
            first, second = x.chunk(2, dim=-1)
            turned = torch.addcmul(first * c, second, s, value=-1)
            second.mul_(c).addcmul_(first, s)
            first.copy_(turned)


class WideHead:
    """A `Linear` of half-precision weights [out, in] whose outputs are not rounded to half precision: close scores stay
    apart, and greedy answers are nearer to those of a more precise run. CUDA only."""

    __slots__ = ("_columns",)

    def __init__(self, weight: Tensor) -> None:
        self._columns = weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self._columns, out_dtype=torch.float32)


class FloatHead:
    """The same by a product in float32, for builds of torch that have no other."""

    __slots__ = ("_columns",)

    def __init__(self, weight: Tensor) -> None:
        self._columns = weight.float().t()

    def __call__(self, x: Tensor) -> Tensor:
        return x.float() @ self._columns


def _linears(dtype: torch.dtype, device: torch.device, vocab: int) -> LinearFactory:
    """Dense linears; the one as high as the vocabulary, which is the head, keeps the precision of its sums."""
    dense = dense_factory(dtype, device)

    def make(weights: Sequence[Tensor | Blocks], bias: Tensor | None) -> Linear:
        linear = dense(weights, bias)
        is_head = len(weights) == 1 and weights[0].shape[0] == vocab and bias is None
        if is_head and dtype == torch.bfloat16 and isinstance(linear, DenseLinear):
            return _head(linear.weight)
        return linear

    return make


def _head(weight: Tensor) -> Linear:
    head = WideHead(weight)
    try:
        head(weight[:2])
    except (RuntimeError, TypeError):
        return FloatHead(weight)
    return head
