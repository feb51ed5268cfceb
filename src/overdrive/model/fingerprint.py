"""What tells one set of weights from another, whatever file or form they are in.

Knows one tensor of a model; nothing of files, drafters or devices.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def fingerprint(final_norm: Tensor) -> str:
    """The SHA-256, in hexadecimal, of a model's final norm weight [H] rounded to bf16.

    Norms are stored unquantised everywhere, so it is the same for a model's safetensors and any .gguf made from them.
    """
    words = final_norm.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16)
    return hashlib.sha256(words.numpy().astype("<i2").tobytes()).hexdigest()
