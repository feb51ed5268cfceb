"""Which device the options mean. The engine asks here and nowhere else."""

from __future__ import annotations

import torch

from overdrive.config import EngineOptions
from overdrive.device.base import Device
from overdrive.device.cpu.device import open_cpu
from overdrive.device.cpu.precompile import Precompiler
from overdrive.errors import OverdriveError


def open_device(options: EngineOptions, precompiler: Precompiler | None = None, rank: int = 0) -> Device:
    """The device of `options.device`. Raises OverdriveError, one line, for one that is not there.

    precompiler: of the CPU's kernels, where one was started early. rank: of several that divide a model; each has a GPU
    of its own, behind the one before it.
    """
    wanted = options.device.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = wanted.partition(":")
    if kind == "cpu" and not index:
        return open_cpu(options.device.threads, options.device.overlap == "on", precompiler)
    if kind == "cuda" and (index.isdigit() or not index):
        from overdrive.device.cuda.device import open_cuda  # and with it Triton, which only GPUs need

        return open_cuda(int(index or 0) + rank, options)
    raise OverdriveError(f"--device must be auto, cpu, cuda or cuda:N, not {wanted!r}")
