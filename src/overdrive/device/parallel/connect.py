"""How ranks find each other: one store on the loopback interface, one group over it, by the kind of device."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from overdrive.device.parallel.gloo import GlooRanks
from overdrive.device.parallel.nccl import ENVIRONMENT, NcclRanks

PATIENCE = timedelta(seconds=120)
"""How long a rank waits for the others within an operation before it takes them for gone."""

Connected = GlooRanks | NcclRanks


def open_store(count: int) -> tuple[dist.TCPStore, int]:
    """The leader's store and its port. Nothing but this machine can reach it."""
    listener = socket.create_server(("127.0.0.1", 0))  # left to itself, the store listens on every interface
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1",
        port,
        count,
        is_master=True,
        timeout=PATIENCE,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    ), port


def reach_store(port: int, count: int) -> dist.TCPStore:
    """A follower's end of the leader's store."""
    return dist.TCPStore("127.0.0.1", port, count, is_master=False, timeout=PATIENCE)


def connect(store: dist.Store, rank: int, count: int, device: torch.device) -> Connected:
    """Returns when all ranks are connected. device: this rank's. Raises RuntimeError when one does not come."""
    if device.type == "cuda":
        return NcclRanks(store, rank, count, device, PATIENCE)
    return GlooRanks(dist.PrefixStore("gloo", store), rank, count, PATIENCE)


def environment(device: torch.device) -> dict[str, str]:
    """What the processes of a group of such devices have in theirs."""
    return ENVIRONMENT if device.type == "cuda" else {}
