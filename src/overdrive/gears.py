"""From options to the controller that decides how much every step drafts, with the costs of steps on this machine.

Knows options, a device's runner and where costs are kept; must never know requests.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from overdrive import __version__
from overdrive.config import DraftOptions, EngineOptions
from overdrive.cost_store import CostStore, Key
from overdrive.device.base import Device
from overdrive.device.costs import WAY, CostSizes, NoRoom, assumed_costs, measure_costs
from overdrive.device.rehearsal import Rehearsal
from overdrive.draft import Choice
from overdrive.limits import Limits
from overdrive.loop import F, Runner
from overdrive.machine import cache_folder, load_average
from overdrive.model.fingerprint import fingerprint
from overdrive.model.weights import Loaded
from overdrive.policy.controller import Beliefs, Controller, FixedDrafts
from overdrive.policy.cost import CostTable
from overdrive.policy.estimator import AcceptanceEstimator
from overdrive.policy.gearbox import Gearbox
from overdrive.policy.setting import Setting, parse_setting
from overdrive.progress import Progress

log = logging.getLogger("overdrive.gears")


@dataclass(frozen=True, slots=True)
class Site:
    """What costs depend on: a model with its drafter on a device, under an engine's limits. n_pages: the scratch page
    included."""

    loaded: Loaded
    choice: Choice
    device: Device
    limits: Limits
    n_pages: int
    options: EngineOptions

    @property
    def sizes(self) -> CostSizes:
        """The steps that the device wants timed."""
        return self.device.cost_sizes(self.limits)

    def key(self, plans: tuple[int, ...]) -> Key:
        """Everything by which costs may differ."""
        target, options = self.loaded.transformer, self.options
        config = target.config
        shape = f"{config.layers} x {config.hidden}, {config.vocab} tokens"
        return {
            "overdrive": __version__,
            "way": WAY,
            "torch": str(torch.__version__),
            "machine": platform.node(),
            "device": self.device.name,
            "ranks": options.device.tensor_parallel,
            "threads": self.device.threads,
            "lookahead": self.device.lookahead,
            "graphs": str(options.device.graphs),
            "model": f"{self.loaded.config.architecture}, {shape}, {fingerprint(target.final_norm)[:16]}",
            "precision": f"{options.model.precision}, deterministic {options.model.deterministic}",
            "drafter": f"{self.choice.name} {_named(self.choice.model)}".strip(),
            "plans": ",".join(map(str, plans)),
            "limits": str(self.limits),
            "sizes": str(self.sizes),
        }


def _named(folder: str) -> str:
    """A folder by its name and a digest of its whole path, which is not for clients, who are told the key."""
    return f"{Path(folder).name} {hashlib.blake2b(folder.encode(), digest_size=4).hexdigest()}" if folder else ""


@dataclass(frozen=True, slots=True)
class Gears:
    """A controller, and what can be reported of the costs it weighs: nothing for one that weighs none.

    speculation: who decides, as `DraftOptions.speculation` says. costs: the table, its key, "origin" and "doubt" as in
    `FoundCosts`. beliefs: what the controller expects by now.
    """

    controller: Controller
    speculation: str = "custom"
    costs: dict[str, Any] = field(default_factory=dict)
    beliefs: Callable[[], Beliefs] = Beliefs


@dataclass(frozen=True, slots=True)
class FoundCosts:
    """A table, where it is from, and why its figures may be wrong; "" where nothing speaks for that."""

    table: CostTable
    origin: Literal["measured", "stored", "assumed"]
    doubt: str = ""


def settle_drafts(options: DraftOptions) -> DraftOptions:
    """`options` with `drafts` as `speculation` means it (3 for fixed:3), and without a drafter where that is off."""
    setting = parse_setting(options.speculation, options.drafts)
    if setting.rule == "off":
        return replace(options, drafts=0, draft="none", draft_model="")
    return replace(options, drafts=setting.drafts)


def open_gears(
    setting: Setting,
    sources: tuple[str, ...],
    row_sizes: Mapping[int, Sequence[int]],
    runner: Runner[F],
    site: Site,
    progress: Progress,
) -> Gears:
    """The controller of a setting, before the first request: costs that are not stored are measured with `runner`.

    sources: those who may write a row's drafts. row_sizes: what the runner pads rows to, as in `CostTable`.
    """
    if setting.rule != "auto" or not setting.drafts:
        return Gears(FixedDrafts(setting.drafts), site.options.draft.speculation)
    found = find_costs(setting.plans, runner, site, CostStore(cache_folder() / "costs"), progress)
    costs = found.table.as_run(row_sizes, site.device.lookahead > 0)  # a runner finds its sizes anew at every start
    report = {"origin": found.origin, "doubt": found.doubt, **costs.to_dict(dict(site.key(setting.plans)))}
    gearbox = Gearbox(costs, AcceptanceEstimator(sources, setting.drafts), setting.plans, site.choice.window)
    return Gears(gearbox, site.options.draft.speculation, report, gearbox.beliefs)


def find_costs(
    plans: tuple[int, ...], runner: Runner[F], site: Site, store: CostStore, progress: Progress
) -> FoundCosts:
    """The costs of steps with each of `plans` drafts, and with none. Those in doubt are not stored."""
    key = site.key(plans)
    stored = store.load(key)
    if stored is not None:
        return FoundCosts(stored, "stored")
    vocab, padded = site.loaded.config.vocab, site.sizes.padded
    rehearsal = Rehearsal(runner, site.limits, site.n_pages, vocab, site.device.lookahead, padded)
    try:
        load = load_average()
        measured = measure_costs(rehearsal, site.sizes, plans, lambda done, total: progress("costs", done, total))
    except NoRoom:  # an engine so small serves nevertheless, and learns as it does
        return FoundCosts(assumed_costs(plans), "assumed")
    doubt = measured.doubt(max(load, load_average()))
    if doubt:
        log.warning("%s; the next start measures them again", doubt)
    else:
        store.save(key, measured.table)
    return FoundCosts(measured.table, "measured", doubt)
