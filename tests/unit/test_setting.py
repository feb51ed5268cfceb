"""What the words of --speculation mean."""

from __future__ import annotations

import pytest

from overdrive.checks import check_engine
from overdrive.config import DraftOptions, EngineOptions
from overdrive.errors import OverdriveError
from overdrive.gears import settle_drafts
from overdrive.policy.setting import Setting, parse_setting


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("auto", Setting("auto", 3)),
        ("off", Setting("off", 0)),
        ("fixed", Setting("fixed", 3)),
        ("fixed:0", Setting("fixed", 0)),
        ("fixed:7", Setting("fixed", 7)),
        ("max:5", Setting("auto", 5)),
    ],
)
def test_words_that_name_no_k_leave_it_to_drafts(text: str, setting: Setting) -> None:
    assert parse_setting(text, 3) == setting


@pytest.mark.parametrize(
    "text", ["", "on", "auto:3", "off:0", "fixed:", "fixed:x", "max", "max:-1", "max:16", "fixed:²"]
)
def test_other_words_are_refused_in_one_line_before_anything_loads(text: str) -> None:
    with pytest.raises(OverdriveError, match="--speculation") as caught:
        check_engine(EngineOptions(draft=DraftOptions(speculation=text)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "plans"),
    [
        (Setting("auto", 0), ()),
        (Setting("auto", 3), (1, 2, 3)),
        (Setting("auto", 4), (1, 2, 3, 4)),
        (Setting("auto", 15), (1, 2, 3, 5, 7, 15)),
        (Setting("fixed", 5), (5,)),
        (Setting("off", 0), ()),
    ],
)
def test_plans_go_up_to_the_most_drafts(setting: Setting, plans: tuple[int, ...]) -> None:
    assert setting.plans == plans


def test_off_loads_no_drafter() -> None:
    options = settle_drafts(DraftOptions(speculation="off", draft="eagle3", draft_model="some head"))
    assert (options.draft, options.draft_model, options.drafts) == ("none", "", 0)
