"""Who decides how much a step drafts, from the words of the command line. Pure; builds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overdrive.errors import OverdriveError
from overdrive.types import MAX_DRAFTS

Rule = Literal["auto", "off", "fixed"]

USUAL = (1, 2, 3, 5, 7)
"""Drafts per row that plans are offered beside 0: close where every draft counts, apart where few are accepted."""


@dataclass(frozen=True, slots=True)
class Setting:
    """rule: auto decides every step anew, fixed drafts the same in every step, off nothing.

    drafts: the most that a plan may hold; of the rule fixed, what every plan holds.
    """

    rule: Rule
    drafts: int

    @property
    def plans(self) -> tuple[int, ...]:
        """Every K beside 0 that plans may hold, ascending."""
        if not self.drafts:
            return ()
        if self.rule == "fixed":
            return (self.drafts,)
        return tuple(sorted({*(k for k in USUAL if k <= self.drafts), self.drafts}))


def parse_setting(text: str, drafts: int) -> Setting:
    """What `--speculation` and `--drafts` mean together: auto, off, fixed, fixed:K or max:K.

    drafts: the most drafts of a plan where the words name no K of their own. Raises OverdriveError, one line.
    """
    rule, colon, number = text.partition(":")
    if rule == "off" and not colon:
        return Setting("off", 0)
    if rule in ("auto", "fixed") and not colon:
        return Setting("fixed" if rule == "fixed" else "auto", drafts)
    if rule not in ("fixed", "max") or not colon:
        raise OverdriveError(f"--speculation must be auto, off, fixed, fixed:K or max:K, not {text!r}")
    if not (number.isascii() and number.isdigit()) or int(number) > MAX_DRAFTS:
        raise OverdriveError(f"--speculation {rule}: needs a number of drafts up to {MAX_DRAFTS}, not {number!r}")
    return Setting("fixed" if rule == "fixed" else "auto", int(number))
