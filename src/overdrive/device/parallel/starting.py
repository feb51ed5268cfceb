"""From options to ranks that are ready to load: what a model can be divided by, the processes, their connections."""

from __future__ import annotations

import torch

from overdrive.config import EngineOptions
from overdrive.device.parallel.connect import connect, environment, open_store
from overdrive.device.parallel.followers import NO_OTHERS, Followers, OtherRanks
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.errors import OverdriveError
from overdrive.model.shard import check_divisible
from overdrive.model.weights import locate, open_checkpoint
from overdrive.progress import Progress


def start_ranks(
    model: str, options: EngineOptions, device: torch.device, progress: Progress
) -> tuple[OtherRanks, Ranks]:
    """The leader's followers, and its end of what ranks do together; neither has anything to do for one rank alone.

    device: the leader's. Raises OverdriveError, one line, for more ranks than there are GPUs, a model that cannot be
    divided by so many, and ranks that do not come.
    """
    count = options.device.tensor_parallel
    if count == 1:
        return NO_OTHERS, ALONE
    _check_devices(count, device)
    source = locate(model, options.model, progress)  # fetched once, by the leader
    check_divisible(open_checkpoint(source, options.model)[0], count)
    progress("ranks", 0, 1)
    followers = Followers(count, environment(device))
    try:
        store, port = open_store(count)
        followers.start(str(source), options, port)
        ranks = connect(store, 0, count, device)
    except RuntimeError as error:
        followers.give_up(f"the ranks do not reach each other: {error}")
        followers.close()
        raise OverdriveError(followers.failure) from error
    except BaseException:
        followers.close()
        raise
    progress("ranks", 1, 1)
    return followers, ranks


def _check_devices(count: int, device: torch.device) -> None:
    found = torch.cuda.device_count() - (device.index or 0)
    if device.type == "cuda" and found < count:
        raise OverdriveError(f"--tensor-parallel {count} needs {count} GPUs; from {device} on there are {found}")
