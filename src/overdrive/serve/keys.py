"""The keys that clients may use, from the command line and from a file, and what is said of a server that asks none."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from overdrive.config import ServerOptions
from overdrive.errors import OverdriveError


def all_keys(options: ServerOptions) -> tuple[str, ...]:
    """Every key, each once. Raises OverdriveError for one that no client could send, and for a file without any."""
    keys = list(options.api_key)
    if options.api_key_file:
        found = _read(Path(options.api_key_file))
        if not found:
            raise OverdriveError(f"--api-key-file: {options.api_key_file} holds no key")
        keys += found
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise OverdriveError("--api-key: a key is one word of printable ASCII characters, and one of them is not")
    return tuple(dict.fromkeys(keys))


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OverdriveError(f"--api-key-file: cannot read {path}: {error}") from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def warning(options: ServerOptions) -> str:
    """What the operator of a server that anybody can use is told; "" where all is well."""
    if options.api_key or loopback(options.host):
        return ""
    return f"anybody who reaches {options.host} can use this server: give it --api-key-file, or guard it otherwise"


def loopback(host: str) -> bool:
    """Whether a name or an address means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
