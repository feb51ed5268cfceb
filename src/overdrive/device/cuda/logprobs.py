"""Log-probabilities of a step's logit rows in static shapes: of every row, whoever asked; the host picks.

Nothing waits for the device, and no size depends on what stands in the logits, so this may stand in a CUDA graph.
"""

from __future__ import annotations

from torch import Tensor

from overdrive.device import logprobs as reference
from overdrive.device.logprobs import Logprobs


def logprobs(logits: Tensor, tokens: Tensor, n: int) -> Logprobs:
    """As `overdrive.device.logprobs.logprobs`; on CUDA in float32, whatever the logits are."""
    if logits.is_cuda:
        from overdrive.device.cuda import logprobs_kernels

        return logprobs_kernels.logprobs(logits, tokens, n)
    return reference.logprobs(logits, tokens, n)
