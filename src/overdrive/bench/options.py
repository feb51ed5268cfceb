"""What all ways of measuring have in common, as the command line shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from overdrive.errors import OverdriveError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What every request and every run is made of."""

    arm: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """NAME='{"field": value}' of the requests; NAME=@SETTING (with --speculation-control); NAME=URL: another server."""
    model: str = ""
    """Name of the model at the server; its only one by default."""
    prompts: Path | None = None
    """JSON lines with turns, messages, prompt or question in each (.gz too); random words otherwise."""
    prompt_tokens: int = 64
    """Rough length of prompts of random words."""
    max_tokens: int = 128
    """Most tokens of an answer."""
    body: str = '{"temperature": 0}'
    """JSON object of fields that all requests of all arms carry."""
    endpoint: Literal["chat", "completions"] = "chat"
    """Which endpoint is asked."""
    repeats: int = 5
    """How often every arm has its turn at every load; what differs less than these do among themselves is no result."""
    seed: int = 0
    """Order of the prompts."""
    timeout: float = 600.0
    """Seconds until a request counts as failed."""
    api_key: str | None = None
    """Key of the server, visible in the process list; OVERDRIVE_API_KEY or OPENAI_API_KEY of the environment else."""
    api_key_file: Path | None = None
    """File that holds the key of the server. No key is written into results or reports."""
    out: Path | None = None
    """File for the results (JSON lines); bench-DATE.jsonl by default. The report is written beside it as .html."""


def check(options: BenchOptions) -> None:
    """Refuses what cannot be measured. Raises OverdriveError naming the option."""
    for name in ("max_tokens", "repeats", "timeout", "prompt_tokens"):
        if getattr(options, name) <= 0:
            raise OverdriveError(f"--{name.replace('_', '-')} must be above 0, not {getattr(options, name)}")
    if options.out is not None and options.out.exists():
        raise OverdriveError(f"--out {options.out}: exists; results are never overwritten, name another file")
    if options.out is not None and not options.out.parent.is_dir():
        raise OverdriveError(f"--out {options.out}: no folder {options.out.parent}")


def parse_loads(text: str, option: str) -> list[int]:
    """'1,2,8' as numbers in rising order. Raises OverdriveError."""
    try:
        loads = sorted({int(part) for part in text.replace(" ", ",").split(",") if part})
    except ValueError:
        loads = []
    if not loads or loads[0] < 1:
        raise OverdriveError(f"{option} {text!r}: whole numbers above 0, such as 1,2,8")
    return loads
