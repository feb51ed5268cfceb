"""What stands beside figures so that they mean something later: date, machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from overdrive import __version__
from overdrive.machine import usable_cores


def setting() -> dict[str, Any]:
    """Facts about this machine and this client, JSON-able. load_average: before the run, so 0 on an idle machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": usable_cores(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        },
        "versions": {
            "overdrive": __version__,
            "python": platform.python_version(),
            "httpx": httpx.__version__,
            "commit": _commit(),
        },
    }


def machine_words(machine: dict[str, Any]) -> str:
    """A machine in one line."""
    return f"{machine.get('processor') or 'unknown processor'}, {machine.get('cores', '?')} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _commit() -> str:
    """The commit this package runs from; "" for an installed one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
