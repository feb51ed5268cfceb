"""The keys that clients may use, from the command line and from a file, and what is said of a server that asks none."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from overdrive.api_keys import read_keys, valid
from overdrive.config import ServerOptions
from overdrive.errors import OverdriveError


def all_keys(options: ServerOptions) -> tuple[str, ...]:
    """Every key, each once. Raises OverdriveError for one that no client could send, and for a file without any."""
    keys = list(options.api_key)
    if options.api_key_file:
        keys += read_keys(Path(options.api_key_file))
    if not all(valid(key) for key in keys):
        raise OverdriveError("--api-key: a key is one word of printable ASCII characters, and one of them is not")
    return tuple(dict.fromkeys(keys))


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
