"""What the engine asks of a device, whatever it is. Chosen in `device.build`, used by `engine` and nobody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from overdrive.config import EngineOptions
from overdrive.device.costs import CostSizes
from overdrive.device.parallel.ranks import ALONE, Ranks
from overdrive.device.sampling import SamplingState
from overdrive.device.stream import Stream, Wait
from overdrive.device.verify import Imposed
from overdrive.limits import Limits
from overdrive.loop import Runner
from overdrive.policy.imposed import conditional_rates, parse_survival
from overdrive.progress import Progress

if TYPE_CHECKING:  # drafters run on devices, and these rooms import that one first
    from overdrive.device.cpu.team import Team
    from overdrive.draft.room import Choice
    from overdrive.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runner is made of. n_pages: the scratch page included.

    drafts: the most that a plan may ask for. plans: what it is likely to ask for, beside 0.

    ranks: those who run every step together; where this one follows, it needs no sampler and has nobody draft.
    """

    model: Transformer
    choice: Choice
    limits: Limits
    n_pages: int
    drafts: int
    plans: tuple[int, ...]
    options: EngineOptions
    ranks: Ranks = ALONE


class DraftingRunner(Runner[Any], Protocol):
    """A runner that says who may write its drafts; `Outcome.sources` are indices into that.

    row_sizes: by K, ascending, numbers of rows that steps without prompts are padded to; empty where they are not.
    """

    @property
    def sources(self) -> tuple[str, ...]: ...

    @property
    def row_sizes(self) -> Mapping[int, Sequence[int]]: ...

    def close(self) -> None:
        """No more steps: give back what connections between devices would wait for."""
        ...


class Device(Protocol):
    """Where a model runs.

    name: of the hardware, by which costs measured on it are told from others. threads: of this process that run
    arithmetic. lookahead: steps that may be launched before the one before them is settled; 1 overlaps the host's work
    with the device's. mask_threads: that may write grammar masks at once while a step runs. writes_ahead: whether what
    certainly follows comes with the masks, before it is known what is drawn. team: the threads of the CPU's kernels,
    None elsewhere. kv_share: of the free memory, what the KV cache takes when no size is given.
    """

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def lookahead(self) -> int: ...

    @property
    def mask_threads(self) -> int: ...

    @property
    def writes_ahead(self) -> bool: ...

    @property
    def team(self) -> Team | None: ...

    @property
    def kv_share(self) -> float: ...

    def resolve(self, options: EngineOptions) -> EngineOptions:
        """`options` with this device's own number wherever they leave one open."""
        ...

    def cost_sizes(self, limits: Limits) -> CostSizes:
        """Which steps to time before serving, so that their costs are known: a few seconds' worth."""
        ...

    def free_bytes(self, options: EngineOptions, model: Transformer) -> int:
        """Memory that the KV cache and what stands beside it may take, the model being loaded."""
        ...

    def open_stream(self, wait: Wait) -> Stream:
        """A stream for launches. wait: how the host is to wait for a device that may need others."""
        ...

    def open_runner(self, parts: Parts, stream: Stream, progress: Progress) -> DraftingRunner:
        """Slots, pages, sampler and drafter around a model, ready to run."""
        ...


def impose(survival: str, sampling: SamplingState, drafts: int) -> Imposed | None:
    """What `DraftOptions.simulate_acceptance` means for plans of up to so many drafts; None where it is empty."""
    if not survival:
        return None
    rates = conditional_rates(parse_survival(survival), max(drafts, 1))
    return Imposed(torch.tensor(rates, dtype=torch.float32, device=sampling.seed.device), sampling.seed)
