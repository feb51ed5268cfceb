"""Getting to know the servers before anything is measured: is it one, does it know the model, does it do as it is told.

Knows what may be wrong with a server; never what is measured on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from overdrive.api_keys import WAYS
from overdrive.bench.arms import Arm
from overdrive.bench.client import Ask, error_text, send
from overdrive.bench.lever import shift
from overdrive.errors import OverdriveError, system_reason

TRIAL_TOKENS = 4
UNKNOWN = "overdrive_bench_no_such_field"
COUNTER = re.compile(
    r"^(overdrive_(?:plans|drafts_\w+|steps|rounds|generated_tokens)_total(?:\{[^}]*\})?) (\S+)$", re.M
)


@dataclass(frozen=True, slots=True)
class Target:
    """models: by server address. notes: what readers of the figures must know. about: what the servers say they are."""

    models: dict[str, str]
    notes: list[str]
    about: dict[str, Any]


async def meet(http: httpx.AsyncClient, arms: Sequence[Arm], asks: Sequence[Ask], model: str) -> Target:
    """Tries every arm with a request of each kind in `asks`. Raises OverdriveError where one cannot work at all."""
    urls = list(dict.fromkeys(arm.url for arm in arms))
    target = Target({url: await _model(http, url, model) for url in urls}, [], {})
    for url in urls:
        target.about[url] = await _about(http, url)
    kinds = {ask.kind: ask for ask in asks}
    for arm in arms:
        await shift(http, arm)
        for ask in kinds.values():
            target.notes.extend(await _try(http, arm, ask, target.models[arm.url]))
    for arm in {arm.url: arm for arm in arms if arm.body}.values():
        target.notes.extend(await _try_unknown(http, arm, asks[0], target.models[arm.url]))
    return replace(target, notes=list(dict.fromkeys(target.notes)))


async def _model(http: httpx.AsyncClient, url: str, wanted: str) -> str:
    """The name to ask for: `wanted`, or the server's only model."""
    try:
        response = await http.get(f"{url}/v1/models", timeout=10)
    except httpx.HTTPError as error:
        raise OverdriveError(f"no server answers at {url} ({system_reason(error)})") from None
    if response.status_code == 401:
        raise OverdriveError(f"{url} wants a key; {WAYS}")
    if response.status_code == 503:
        raise OverdriveError(f"{url} cannot serve now: {error_text(503, response.content)}")
    try:
        names = [str(card["id"]) for card in response.json()["data"]] if response.status_code == 200 else []
    except (ValueError, KeyError, TypeError):
        names = []
    if not names:
        said = f"GET /v1/models gave HTTP {response.status_code} without a list of models"
        raise OverdriveError(f"{url} is no OpenAI-compatible server: {said}")
    if wanted and wanted not in names:
        raise OverdriveError(f"no model {wanted!r} at {url}; it serves {', '.join(names[:5])}")
    if not wanted and len(names) > 1:
        raise OverdriveError(f"{url} serves several models; choose with --model: {', '.join(names[:5])}")
    return wanted or names[0]


async def _try(http: httpx.AsyncClient, arm: Arm, ask: Ask, model: str) -> list[str]:
    short = Ask(ask.path, {**ask.body, "max_tokens": TRIAL_TOKENS}, ask.kind)
    sample = await send(http, arm.url, short, model, arm.body)
    if sample.error:
        kind = "" if ask.kind == "plain" else f" ({ask.kind})"
        raise OverdriveError(f"arm {arm.name}: {arm.url} failed a trial request{kind}: {sample.error}")
    notes = []
    if sample.output_tokens > sample.max_tokens:
        wrote = f"{sample.output_tokens} tokens where {sample.max_tokens} were allowed"
        notes.append(f"arm {arm.name}: the server ignores max_tokens ({wrote}); lengths of answers are its own choice.")
    if sample.counted == "chunks":
        notes.append(
            f"arm {arm.name}: the server sends no usage at the end of a stream; chunks are counted in place of tokens, "
            "which is too few where a chunk holds several."
        )
    return notes


async def _try_unknown(http: httpx.AsyncClient, arm: Arm, ask: Ask, model: str) -> list[str]:
    """A server that takes a field nobody knows would take an arm's fields as silently."""
    short = Ask(ask.path, {**ask.body, "max_tokens": TRIAL_TOKENS, UNKNOWN: 1})
    sample = await send(http, arm.url, short, model, {})
    if sample.error:
        return []
    return [f"{arm.url} accepts fields that do not exist, so it may ignore those of the arms without saying so."]


async def _about(http: httpx.AsyncClient, url: str) -> Any:
    """What an Overdrive server tells of itself, without the places of its files; {} of others."""
    try:
        response = await http.get(f"{url}/server_info", timeout=10)
        facts = response.json() if response.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    if not isinstance(facts, dict) or not isinstance(engine := facts.get("engine"), dict):
        return {}
    told = {name: value for name, value in engine.items() if name not in ("source", "draft_model")}
    head = str(engine.get("draft_model") or "").replace("\\", "/").rstrip("/").rpartition("/")[2]
    return {"version": facts.get("version"), "engine": {**told, "draft_model": head}}


async def counters(http: httpx.AsyncClient, url: str) -> dict[str, float]:
    """The engine's counters of an Overdrive server by name and labels, {} elsewhere.

    What they grow by tells what a block did: steps by number of drafts, drafts by position.
    """
    try:
        response = await http.get(f"{url}/metrics", timeout=10)
        return {name: float(value) for name, value in COUNTER.findall(response.text)}
    except (httpx.HTTPError, ValueError):
        return {}
