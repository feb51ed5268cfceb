"""Acceptance as a measurement prescribes it, from the words of the command line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from overdrive.errors import OverdriveError


def parse_survival(text: str) -> tuple[float, ...]:
    """Shares of rows that accept the first draft, the first two, ..: "0.7,0.49,0.343" -> (0.7, 0.49, 0.343).

    Raises OverdriveError for anything but numbers from 0 to 1 that do not rise.
    """
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OverdriveError(f"--simulate-acceptance must be numbers with commas between, not {text!r}") from None
    if not all(0 <= share <= 1 for share in shares):
        raise OverdriveError(f"--simulate-acceptance must be shares between 0 and 1, not {text!r}")
    if any(later > earlier for earlier, later in pairwise(shares)):
        raise OverdriveError(f"--simulate-acceptance must not rise: no draft counts without those before it: {text!r}")
    return shares


def conditional_rates(survival: Sequence[float], drafts: int) -> list[float]:
    """Chance of each of `drafts` drafts to be accepted if those before it were; the last one goes on.

    survival a_1, a_2, .. -> p_j = a_j / a_(j-1), with a_0 = 1 and p_j = 0 where a_(j-1) is 0.
    """
    before = (1.0, *survival)
    rates = [later / earlier if earlier else 0.0 for earlier, later in zip(before, survival, strict=False)]
    return (rates + [rates[-1]] * drafts)[:drafts]
