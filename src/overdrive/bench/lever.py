"""Arms that are settings of one server's speculation: put there before each turn, and put back at the end.

Knows the server's path for that; never what is measured.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import httpx

from overdrive.api_keys import WAYS
from overdrive.bench.arms import Arm
from overdrive.bench.client import error_text
from overdrive.errors import OverdriveError, system_reason


async def shift(http: httpx.AsyncClient, arm: Arm) -> None:
    """Have the arm's server speculate as the arm says; nothing for arms that say nothing. Raises OverdriveError."""
    if arm.speculation:
        await _put(http, arm.url, arm.speculation, f"arm {arm.name}")


@asynccontextmanager
async def put_back(http: httpx.AsyncClient, arms: Sequence[Arm]) -> AsyncIterator[None]:
    """Within it arms may be shifted; at its end the servers speculate as they did before, those that are there."""
    urls = dict.fromkeys(arm.url for arm in arms if arm.speculation)
    before = {url: await _read(http, url) for url in urls}
    try:
        yield
    finally:
        for url, setting in before.items():
            with suppress(OverdriveError):
                await _put(http, url, setting, "the run")


async def _read(http: httpx.AsyncClient, url: str) -> str:
    try:
        response = await http.get(f"{url}/speculation", timeout=10)
        if response.status_code == 401:
            raise OverdriveError(f"{url} wants a key; {WAYS}")
        return str(response.json()["speculation"]) if response.status_code == 200 else _none(url)
    except httpx.HTTPError as error:
        raise OverdriveError(f"no server answers at {url} ({system_reason(error)})") from None
    except (ValueError, KeyError, TypeError):
        return _none(url)


def _none(url: str) -> str:
    raise OverdriveError(f"{url} does not say how it speculates (GET /speculation), so no arm can be @SETTING there")


async def _put(http: httpx.AsyncClient, url: str, setting: str, whose: str) -> None:
    try:
        response = await http.put(f"{url}/speculation", json={"speculation": setting}, timeout=60)
    except httpx.HTTPError as error:
        raise OverdriveError(f"{whose}: {url} stopped answering ({system_reason(error)})") from None
    if response.status_code != 200:
        said = error_text(response.status_code, response.content)
        raise OverdriveError(f"{whose}: {url} does not speculate as {setting}: {said}")
