"""The arms of a measurement: extra fields of every request, settings of a server's speculation, or several servers.

Knows how arms are written on the command line and in which order they take turns; never how a request is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from overdrive.errors import OverdriveError
from overdrive.json_text import parse_json

OWN_FIELDS = ("model", "messages", "prompt", "stream", "stream_options", "n")


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to compare. url: its server. body: fields added to every request of its. speculation: what the server
    is set to before each of its turns, in the words of `--speculation`; "" leaves the server alone."""

    name: str
    url: str
    body: dict[str, Any] = field(default_factory=dict)
    speculation: str = ""


def parse_arms(texts: Sequence[str], url: str) -> list[Arm]:
    """The arms in the order they were given; one without extra fields when there are none.

    Each text is NAME= and then any of URL @SETTING JSON, in this order. `url` is the server of arms that name none.
    Raises OverdriveError, one line.
    """
    arms = [_parse(text, url) for text in texts] or [Arm("server", base_url(url))]
    names = [arm.name for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise OverdriveError(f"--arm {twice}: given twice; every arm needs a name of its own")
    set_ones = {arm.url for arm in arms if arm.speculation}
    if unset := next((arm.name for arm in arms if arm.url in set_ones and not arm.speculation), ""):
        raise OverdriveError(f"--arm {unset}: other arms set this server's speculation; say @SETTING, such as @auto")
    return arms


def _parse(text: str, url: str) -> Arm:
    name, equals, rest = text.partition("=")
    name, rest = name.strip(), rest.strip()
    if not (name and equals):
        raise OverdriveError(f"--arm {text!r}: write NAME={{...}}, NAME=@off or NAME=http://..., for example off={{}}")
    if rest.startswith(("http://", "https://")):
        url, _, rest = rest.partition(" ")
    speculation, rest = "", rest.lstrip()
    if rest.startswith("@"):
        speculation, _, rest = rest[1:].partition(" ")
    return Arm(name, base_url(url), parse_body(rest.strip(), f"--arm {name}"), speculation)


def parse_body(text: str, option: str) -> dict[str, Any]:
    """A JSON object of request fields; {} for an empty text. `option` is named in errors."""
    try:
        value = parse_json(text or "{}")
    except ValueError:
        raise OverdriveError(f"{option}: not valid JSON: {text[:80]}") from None
    if not isinstance(value, dict):
        raise OverdriveError(f"{option}: must be a JSON object of request fields, not {text[:80]}")
    if own := [key for key in OWN_FIELDS if key in value]:
        raise OverdriveError(f"{option}: {own[0]!r} is set by the bench itself")
    return value


def base_url(url: str) -> str:
    """The address without a trailing slash or /v1, which clients add themselves."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise OverdriveError(f"{url!r} is not the address of a server; write http://host:port")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def turns(arms: Sequence[Arm], repeat: int) -> list[Arm]:
    """The order of the arms in this repeat: another one begins each time, and every second cycle runs backwards.

    So that a machine that slowly warms up or is taken by others favours no arm.
    """
    start = repeat % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if repeat // len(arms) % 2 else order
