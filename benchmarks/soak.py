"""Hours of service in minutes: random mixed traffic, clients that leave, engines that are killed; then the account.

Run: make soak [ARGS="--requests 10000 --kill-every 1000 --model tiny"], or for hours: ARGS="--hours 8 --model smollm2".
Options that this command does not know go to `overdrive serve`.

Traffic stops after every `--pause-every` requests, until the engine says that it is idle. Then everything must be back
exactly (pages, slots, matchers; requests submitted = requests ended), and resident memory is read. With
`--kill-every` the engine is killed in the middle of the traffic that follows, every third time only stopped (the server
has to find out); whoever was waiting must get an error.
A request is lost where its client saw neither an end nor an error. Exit code 1 where anything was lost or is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import httpx

from soak_server import Server
from soak_traffic import ABORTED, ask, random_body

SETTLE_SECONDS = 60.0
KILL_AFTER = 0.4  # of a block's requests
BACK_SECONDS = 300.0
PATIENCE = (0.0, 0.01, 0.05, 0.2)  # seconds, of clients that leave
STOP_EVERY = 3  # of the kills
COME_BACK = ("error unavailable", "error queue_full")


@dataclass
class Account:
    """What has happened up to now."""

    ends: Counter[str] = field(default_factory=Counter)
    put_off: int = 0
    kills: int = 0
    stops: int = 0
    left_behind: list[str] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return sum(self.ends.values())

    @property
    def lost(self) -> dict[str, int]:
        return {end: count for end, count in self.ends.items() if end.startswith("lost")}

    def growth(self) -> dict[str, float]:
        """Mean resident memory of the second half of the pauses against the first, less one: by process, and of both.

        The first pause is left out: whatever is made once is made by then.
        """
        later = [{**one, "both": sum(one.values())} for one in self.memory[1:]]
        half = len(later) // 2
        if not half:
            return {}
        parts = later[:half], later[-half:]
        first, second = ({name: statistics.fmean(one[name] for one in part) for name in part[0]} for part in parts)
        return {name: second[name] / first[name] - 1 for name in first}


async def traffic(server: Server, account: Account, rng: random.Random, count: int, given: argparse.Namespace) -> None:
    """`count` requests by `--clients` clients; one that is told to come back later does so and is counted once."""
    todo = count
    # Servers close what is idle for five seconds: who keeps connections longer may send into one that is being closed.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=given.clients, keepalive_expiry=2.0)

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal todo
        while todo > 0:
            todo -= 1
            path, body = random_body(rng)
            patience = rng.choice(PATIENCE) if rng.random() < given.aborts else inf
            give_up = time.monotonic() + BACK_SECONDS
            while (end := await ask(http, path, {"model": "soak", **body}, patience)) in COME_BACK:
                account.put_off += 1
                if time.monotonic() > give_up:
                    end = "lost: the server did not come back"
                    break
                await asyncio.sleep(0.2 + 0.2 * rng.random())
            account.ends[end] += 1

    async with httpx.AsyncClient(base_url=server.url, timeout=BACK_SECONDS, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(given.clients)))


async def kill_midway(server: Server, account: Account, count: int) -> None:
    """Kill or stop the engine when a part of the block's requests have been answered."""
    until = account.answered + int(KILL_AFTER * count)
    while account.answered < until:
        await asyncio.sleep(0.005)
    if (account.kills + account.stops) % STOP_EVERY == STOP_EVERY - 1:
        server.stop_engine()
        account.stops += 1
    else:
        server.kill_engine()
        account.kills += 1


def settle(server: Server, account: Account) -> None:
    """Wait until the engine is idle, and note what it has not given back."""
    deadline = time.monotonic() + SETTLE_SECONDS
    server.wait_until_ready()
    while True:
        stats = server.info()["stats"]
        left = {name: stats[name] for name in ("running", "waiting", "pages_used", "slots_used", "matchers")}
        left["unaccounted"] = stats["submitted"] - sum(stats["finished"].values())
        if not any(left.values()):
            break
        if time.monotonic() > deadline:
            account.left_behind.append(f"after {account.answered} requests: {left}")
            break
        time.sleep(0.2)
    account.memory.append(server.resident())


def soak(server: Server, given: argparse.Namespace) -> Account:
    """Block after block, until all requests are answered or the hours are over."""
    account, rng = Account(), random.Random(given.seed)
    until = time.monotonic() + 3600 * given.hours
    since_kill = 0
    settle(server, account)
    account.memory.clear()

    async def block(count: int, kill: bool) -> None:
        works = [traffic(server, account, rng, count, given)]
        if kill:
            works.append(kill_midway(server, account, count))
        await asyncio.gather(*works)

    while time.monotonic() < until if given.hours else account.answered < given.requests:
        count = given.pause_every if given.hours else min(given.pause_every, given.requests - account.answered)
        since_kill += count
        kill = bool(given.kill_every) and since_kill >= given.kill_every
        since_kill = 0 if kill else since_kill
        asyncio.run(block(count, kill))
        settle(server, account)
        told = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in account.memory[-1].items())
        blows = f"{account.kills} kills, {account.stops} stops"
        print(f"{account.answered} requests, {blows}; {told}", file=sys.stderr, flush=True)
    return account


def report(account: Account, seconds: float, code: int, log_bytes: int) -> dict[str, Any]:
    """Everything that was found, for people and machines."""
    errors = {end: count for end, count in account.ends.items() if end.startswith("error")}
    return {
        "requests": account.answered,
        "seconds": round(seconds, 1),
        "finished": account.ends["finished"],
        "aborted": account.ends[ABORTED],
        "errors": errors,
        "lost": account.lost,
        "told_to_come_back": account.put_off,
        "engine_kills": account.kills,
        "engine_stops": account.stops,
        "left_behind": account.left_behind,
        "memory_mib": {name: [round(one[name], 1) for one in account.memory] for name in account.memory[0]},
        "memory_growth_percent": {name: round(100 * by, 2) for name, by in account.growth().items()},
        "drain_exit_code": code,
        "log_bytes": log_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="tiny, smollm2 or whatever `overdrive serve` takes")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=0.0, help="run for so long instead of --requests")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--aborts", type=float, default=0.1, help="share of requests whose client leaves early")
    parser.add_argument("--kill-every", type=int, default=1000, help="requests from one kill of the engine to the next")
    parser.add_argument("--pause-every", type=int, default=1000, help="requests from one account to the next")
    parser.add_argument("--seed", type=int, default=0)
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder, Server(given.model, Path(folder), options) as server:
        server.wait_until_ready()
        began = time.monotonic()
        account = soak(server, given)
        seconds = time.monotonic() - began
        code = server.drain(60.0)
        found = report(account, seconds, code, server.log_bytes)
    print(json.dumps(found, indent=2))
    sys.exit(1 if account.lost or account.left_behind or code else 0)


if __name__ == "__main__":
    main()
