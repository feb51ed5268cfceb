"""Who decides how much every step drafts, from options to a controller. Knows options; must never know requests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from overdrive.config import DraftOptions
from overdrive.policy.controller import Controller, FixedDrafts
from overdrive.policy.setting import Setting, parse_setting


@dataclass(frozen=True, slots=True)
class Gears:
    """A controller, and the costs it weighs as a report has them: the table, its key and its "origin", measured or
    stored; empty where nothing is weighed."""

    controller: Controller
    costs: dict[str, Any] = field(default_factory=dict)


def settle_drafts(options: DraftOptions) -> DraftOptions:
    """`options` with `drafts` as their words on speculation mean it, and nobody to draft where they want nothing."""
    setting = parse_setting(options.speculation, options.drafts)
    if setting.rule == "off":
        return replace(options, drafts=0, draft="none", draft_model="")
    return replace(options, drafts=setting.drafts)


def open_gears(setting: Setting) -> Gears:
    """The controller of a setting."""
    # The gear box is still a form without content: until it decides, auto drafts as much as it may.
    return Gears(FixedDrafts(setting.drafts))
