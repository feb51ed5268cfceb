"""What this process may use of the machine: cores and memory, container limits included, and a folder for its cache.

Linux; guesses elsewhere.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Physical cores this process may run on, at least 1: two threads of one core share its arithmetic units."""
    if not hasattr(os, "sched_getaffinity"):
        return max(1, os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    cores = {_read(_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota_cores()))


def load_average() -> float:
    """Processes that ran or wanted to in the last minute, for each of the machine's processors; 0 where nobody says."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0


def processor() -> str:
    """The processor's name, and how many of its cores this process may use."""
    lines = (line.partition(":") for line in _read(Path("/proc/cpuinfo")).splitlines())
    told = {name.strip(): value.strip() for name, _, value in lines}
    name = told.get("model name") or platform.processor() or platform.machine()
    family = "/".join(told.get(part, "") for part in ("cpu family", "model", "stepping"))
    return f"{name} ({family}), {usable_cores()} cores"


def _quota_cores() -> int:
    """Whole cores a container's CPU quota allows; many where there is none."""
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return max(1, int(quota) // int(period))
    return 1 << 16


def available_bytes() -> int:
    """Memory that can be taken without swapping, within a container's limit; 1 GiB where nobody says."""
    meminfo = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line)
    words = meminfo.get("MemAvailable", "").split()
    free = int(words[0]) * 1024 if words else 1 << 30
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return free


def cache_folder() -> Path:
    """Where fetched models and measured costs are kept: $XDG_CACHE_HOME/overdrive, or ~/.cache/overdrive."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "overdrive"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
