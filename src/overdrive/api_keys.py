"""API keys outside a request: files of them, and the one that a client of a server sends.

A key is in no message, no log line and no report: whoever names what is wrong with one says where it came from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from overdrive.errors import OverdriveError, system_reason

VARIABLES = ("OVERDRIVE_API_KEY", "OPENAI_API_KEY")
WAYS = f"--api-key-file, {' or '.join(VARIABLES)} in the environment, or --api-key give a server's key"


def client_key(given: str | None, file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """The key for a server, "" for none: `given`, else the first one of `file`, else the environment's.

    given: None where nothing was; "" sends no key whatever the environment has. Raises OverdriveError for a file that
    holds none, and for a key that no request can hold.
    """
    if given is not None:
        return _checked(given, "--api-key")
    if file is not None:
        return _checked(read_keys(file)[0], "--api-key-file")
    for name in VARIABLES:
        if key := environ.get(name, "").strip():
            return _checked(key, name)
    return ""


def _checked(key: str, source: str) -> str:
    if key and not valid(key):
        raise OverdriveError(f"{source}: a key is one word of printable ASCII characters, and this is none")
    return key


def valid(key: str) -> bool:
    """Whether a request can hold it, as a bearer token."""
    return bool(key) and key.isascii() and key.isprintable() and " " not in key


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one per line; # begins a comment. Raises OverdriveError where there is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OverdriveError(f"--api-key-file: cannot read {path}: {system_reason(error)}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise OverdriveError(f"--api-key-file: {path} holds no key")
    return keys
