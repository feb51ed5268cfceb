"""Imposed acceptance, as people write it."""

from __future__ import annotations

import pytest

from overdrive.errors import OverdriveError
from overdrive.policy.imposed import conditional_rates, parse_survival


def test_rates_are_conditional_and_the_last_one_goes_on() -> None:
    assert conditional_rates(parse_survival("0.7,0.49,0.343"), 5) == pytest.approx([0.7] * 5)
    assert conditional_rates(parse_survival("0.8, 0.4"), 3) == pytest.approx([0.8, 0.5, 0.5])
    assert conditional_rates(parse_survival("1,0"), 4) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", ["", "often", "0.5,", "1.2", "-0.1", "0.5,0.6", "nan"])
def test_what_no_acceptance_can_be_is_refused(text: str) -> None:
    with pytest.raises(OverdriveError, match="--simulate-acceptance"):
        parse_survival(text)
