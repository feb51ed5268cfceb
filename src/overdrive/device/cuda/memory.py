"""A CUDA device's memory, and whether there is such a device: questions with one-line answers, asked before loading."""

from __future__ import annotations

import torch

from overdrive.errors import OverdriveError

GIB = 1 << 30


def check_device(device: torch.device) -> None:
    """Raises OverdriveError, one line that says what to do, where torch cannot use this CUDA device."""
    if not torch.backends.cuda.is_built():
        raise OverdriveError(
            f"this torch ({torch.__version__}) is built without CUDA: install a CUDA build, or run with --device cpu"
        )
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or count == 0:
        raise OverdriveError(
            "torch finds no CUDA device: check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, "
            "or run with --device cpu"
        )
    if (device.index or 0) >= count:
        raise OverdriveError(
            f"there is no {device}: torch finds {count} CUDA device{'s' if count > 1 else ''}, counted from cuda:0"
        )


def free_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on a CUDA device: free ones, and those that torch keeps for reuse."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def give_back_spare(device: torch.device) -> None:
    """Return what loading has left in torch's cache, so that other users of the device, and graphs' pools, have it."""
    with torch.cuda.device(device):
        torch.cuda.empty_cache()


def check_room(what: str, needed: int, free: int, device: torch.device) -> None:
    """Raises OverdriveError where `what` (a model, as people call it) needs more bytes than are free."""
    if needed > free:
        raise OverdriveError(
            f"{what} needs {needed / GIB:.1f} GiB for its weights and {device} has {free / GIB:.1f} GiB free: "
            "take a smaller --precision (fp8, int8, int4) or model, or free the device"
        )
