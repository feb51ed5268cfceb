"""Speculation by hand: who decides can be replaced while steps run. Pure; never torch."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.errors import BadRequest, OverdriveError
from overdrive.policy.controller import Controller, FixedDrafts, LoadView
from overdrive.policy.setting import parse_setting
from overdrive.types import Outcome, Plan, Step


class Lever(Controller):
    """Stands before the engine's own controller, and puts a fixed number of drafts in its place when told to.

    setting: who decides now, in the words of `--speculation`. shifts: calls of `shift`, refused ones among them.

    While it does not decide, the engine's own controller learns nothing but which request has which slot: arms that are
    measured by turns must not know what the others found out.
    """

    def __init__(self, own: Controller, setting: str, most: int) -> None:
        """own: the engine's controller, and its `setting`. most: drafts per row that the device has room for."""
        self.setting = setting
        self.shifts = 0
        self._own, self._own_setting = own, setting
        self._most = most
        self._deciding = own

    @property
    def plans(self) -> Sequence[int]:
        return self._own.plans

    def shift(self, setting: str) -> None:
        """From the next step on, this decides. Raises BadRequest, see `fixed_by`."""
        self.shifts += 1
        k = fixed_by(setting, self._own_setting, self._most)
        self._deciding = self._own if k is None else FixedDrafts(k)
        self.setting = setting

    def choose(self, view: LoadView) -> Plan:
        return self._deciding.choose(view)

    def observe(self, step: Step, outcome: Outcome) -> None:
        if self._deciding is self._own:
            self._own.observe(step, outcome)
        else:
            self._own.follow(step)

    def observe_masks(self, masks: int, seconds: float) -> None:
        self._deciding.observe_masks(masks, seconds)


def fixed_by(setting: str, own: str, most: int) -> int | None:
    """Drafts of every step under this setting; None where it is the engine's own one.

    Raises BadRequest for anything but `own`, off, and fixed:K with K up to `most`.
    """
    if setting == own:
        return None
    try:
        parsed = parse_setting(setting, most)
    except OverdriveError:
        parsed = None
    if parsed is None or parsed.rule == "auto" or parsed.drafts > most:
        choices = ", ".join(dict.fromkeys((own, "off", f"fixed:K with K up to {most}")))
        raise BadRequest(f"speculation here is one of {choices}, not {setting[:40]!r}", "speculation")
    return parsed.drafts
