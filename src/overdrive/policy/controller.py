"""Choosing a step's plan: a pure function of host-side facts that are at least one step old. Never torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from overdrive.types import Outcome, Plan, Step, Why


@dataclass(frozen=True, slots=True)
class LoadView:
    """What a plan may depend on.

    decode_rows: rows that would each feed one known token. prefill_tokens: known tokens of prompts in the same step.
    context_tokens: positions the decode rows attend to, an upper bound.
    sampled_rows: how many of the decode rows draw with noise; the others are greedy.
    caps: decode rows by the most drafts each can take (tokens it still wants, room, opting out, the step's token
    budget): `caps[c]` of them take c, c <= MAX_DRAFTS. Empty where no row is held back.
    masked_rows: how many of the decode rows are constrained: each needs a mask for its token and for every draft.
    masked_sampled: how many of those draw with noise.
    """

    decode_rows: int
    prefill_tokens: int
    context_tokens: int
    sampled_rows: int = 0
    caps: tuple[int, ...] = ()
    masked_rows: int = 0
    masked_sampled: int = 0


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What a controller expects by now; empty where it expects nothing.

    survival: by position, the share of rows that is expected to accept so many drafts, as it was last weighed.
    errors: by position, the share accepted lately less the share that was expected.
    costs: seconds as corrected, `CostTable.corrected`.
    """

    survival: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    costs: dict[str, list[list[float]]] = field(default_factory=dict)


class Controller(Protocol):
    """Whoever decides how much the next step drafts. Those that learn nothing inherit an `observe` that does nothing.

    plans: every K that it may decide for beside 0, which a device can prepare for; it may return others, which then
    take longer.
    """

    @property
    def plans(self) -> Sequence[int]: ...

    def choose(self, view: LoadView) -> Plan: ...

    def observe(self, step: Step, outcome: Outcome) -> None:
        """A step has settled, in the order in which steps were launched."""
        return

    def follow(self, step: Step) -> None:
        """A step has settled that somebody else decided on: it shows whose slots are whose, and teaches nothing."""
        return

    def observe_masks(self, masks: int, seconds: float) -> None:
        """So many grammar masks were written in so much of the host's time."""
        return


class FixedDrafts(Controller):
    """The same K at every load."""

    def __init__(self, drafts: int) -> None:
        self._plan = Plan(drafts, Why(rule="fixed"))

    @property
    def plans(self) -> Sequence[int]:
        return (self._plan.drafts,)

    def choose(self, view: LoadView) -> Plan:
        return self._plan
