"""Half of the kernels compiled by a second process while the first one imports, reads weights and compiles the rest.

A first start would otherwise spend twenty seconds in the compiler on one core. Both write to numba's cache on disk; the
first process waits for the second before it needs what that compiles, and later starts find everything there. Nothing
depends on it: without a second process the kernels are compiled where they are first needed.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from overdrive.device.cpu.fingerprint import SOURCE

WAIT_SECONDS = 60.0


class Precompiler:
    """A process that compiles, or nothing where an earlier one has done so."""

    def __init__(self) -> None:
        """Starts at once. Imports neither torch nor numba, so that it can be the first thing a program does."""
        self._mark = _mark()
        self._process: subprocess.Popen[bytes] | None = None
        if not self._mark.exists():
            nowhere = subprocess.DEVNULL
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)

    def wait(self) -> None:
        """Returns when the kernels are on disk, or will not come."""
        if self._process is None:
            return
        try:
            if self._process.wait(WAIT_SECONDS) == 0:
                self._mark.touch()
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()
        self._process = None


def _mark() -> Path:
    """A file that says: compiled, by this numba for this source on this machine. In the user's temporary folder, since
    losing it only costs time."""
    name = f"overdrive-kernels-{SOURCE[:16]}-{version('numba')}-{platform.machine()}-{sys.version_info.minor}"
    return Path(tempfile.gettempdir()) / name


def compile_all() -> None:
    """Compile what the second process is for: the sampler and the drafters."""
    import torch

    from overdrive.device.cpu.sampling import CpuSampler
    from overdrive.device.cpu.team import Team
    from overdrive.draft import compile_drafters

    CpuSampler(1, torch.float32, Team(1))
    compile_drafters()


if __name__ == "__main__":
    compile_all()
