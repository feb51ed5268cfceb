"""Small tables on their way to the device, by copies that are not waited for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(lines: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The lines as one int64 tensor on `device`; the host memory it leaves from is held until it has left."""
    table = torch.tensor(lines, dtype=torch.int64)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
