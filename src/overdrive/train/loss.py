"""Soft cross-entropy of a linear layer, without keeping its logits.

The gradient of cross-entropy is known where the logits are: softmax minus target. So the forward pass computes it at
once, slice by slice, and keeps only gradients of the layer's input and weight: [N, V] scores never outlive a slice.
(The idea is that of fused linear cross-entropy, Hsu et al. 2024, here for soft targets.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ROWS = 8192  # of a slice


Kernel = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""kernel(logits, target, scale): see `slice_loss`, of which it is a compiled form."""


def soft_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, scale: Tensor, kernel: Kernel) -> Tensor:
    """sum over n of scale[n] * cross-entropy(target[n], softmax(weight @ hidden[n])), a scalar, float32 or better.

    hidden: [N, H]. weight: [V, H], kept in its own dtype and used in hidden's. target: [N, V] in hidden's dtype, rows
    sum to 1. scale: [N]. Differentiable in hidden and weight.
    """
    return _SoftCrossEntropy.apply(hidden, weight, target, scale, kernel)


def scores(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden [N, H] @ weight [V, H] -> [N, V] in float32 or better: half-precision logits would blur close tokens."""
    if hidden.is_cuda and hidden.dtype == torch.bfloat16:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    logits = hidden @ weight.T
    return logits if logits.dtype == torch.float64 else logits.float()


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, scale: Tensor, kernel: Kernel) -> Tensor:
        used = weight.to(hidden.dtype)
        loss = torch.zeros((), dtype=scale.dtype, device=hidden.device)
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for start in range(0, len(hidden), ROWS):
            part = slice(start, start + ROWS)
            lost, d_scores = kernel(scores(hidden[part], used), target[part], scale[part])
            loss += lost
            torch.mm(d_scores, used, out=d_hidden[part])
            d_weight += d_scores.T @ hidden[part]
        ctx.save_for_backward(d_hidden, d_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        (grad,) = grads
        return d_hidden * grad.to(d_hidden.dtype), d_weight * grad.to(d_weight.dtype), None, None, None


def slice_loss(logits: Tensor, target: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of some rows, and its gradient by their logits [n, V] in the target's dtype."""
    log_shares = logits.log_softmax(-1)
    lost = (torch.linalg.vecdot(target.to(logits.dtype), log_shares) * scale).sum().neg()
    return lost, log_shares.exp_().sub_(target).mul_(scale[:, None]).to(target.dtype)
