"""Choosing a step's plan: a pure function of host-side facts that are at least one step old. Never torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from overdrive.types import Plan, Why


@dataclass(frozen=True, slots=True)
class LoadView:
    """What a plan may depend on.

    decode_rows: rows that would each feed one known token. prefill_tokens: known tokens of prompts in the same step.
    context_tokens: positions the decode rows attend to, an upper bound.
    """

    decode_rows: int
    prefill_tokens: int
    context_tokens: int


class Controller(Protocol):
    """Whoever decides how much the next step drafts. plans: every K that it may decide for beside 0, which a device
    can prepare for; it may return others, which then take longer."""

    @property
    def plans(self) -> Sequence[int]: ...

    def choose(self, view: LoadView) -> Plan: ...


class FixedDrafts:
    """The same K at every load."""

    def __init__(self, drafts: int) -> None:
        self._plan = Plan(drafts, Why(rule="fixed"))

    @property
    def plans(self) -> Sequence[int]:
        return (self._plan.drafts,)

    def choose(self, view: LoadView) -> Plan:
        return self._plan
